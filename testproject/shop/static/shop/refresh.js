// Show the list of orders anew every few seconds, unless somebody is about to do something with it.
setInterval(() => {
    const list = document.querySelector("#changelist");
    const isIdle = [null, document.body].includes(document.activeElement);
    if (list && isIdle && !list.querySelector("input:checked")) location.reload();
}, 3000);
