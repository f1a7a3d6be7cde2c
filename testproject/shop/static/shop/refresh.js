// Show the list of orders anew every few seconds, unless somebody is about to do something with it.
setInterval(() => {
    const list = document.querySelector("#changelist");
    if (list && !list.querySelector("input:checked") && !list.contains(document.activeElement)) location.reload();
}, 3000);
