"use strict";
// Comfort only: every page works without it.
document.addEventListener("DOMContentLoaded", () => {
    // What was folded stays folded, on small screens and on large ones apart. On a small one, a list begins with its rows.
    const isSmall = window.matchMedia("(max-width: 767px)").matches;
    for (const fold of document.querySelectorAll("details[data-smf-remember]")) {
        const key = `statemachine_fields.${fold.dataset.smfRemember}${isSmall ? ".small" : ""}`;
        try {
            const kept = localStorage.getItem(key) ?? (isSmall && fold.matches(".smf-overview") ? "closed" : null);
            if (kept !== null) {
                fold.open = kept === "open";
            }
            fold.addEventListener("toggle", () => localStorage.setItem(key, fold.open ? "open" : "closed"));
        } catch {
            // The browser keeps nothing: so be it.
        }
    }
    // Where a large graph does not fit, the row's own state is in sight.
    for (const drawing of document.querySelectorAll(".smf-fold .smf-drawing")) {
        const current = [...drawing.querySelectorAll(".smf-current")].find((state) => state.getClientRects().length);
        if (current) {
            const box = current.getBoundingClientRect();
            const frame = drawing.getBoundingClientRect();
            drawing.scrollTop += box.top + box.height / 2 - (frame.top + frame.height / 2);
            drawing.scrollLeft += box.left + box.width / 2 - (frame.left + frame.width / 2);
        }
    }
    // A second click on a button that has been pressed would only be told that it came too late.
    const forms = document.querySelectorAll("form[data-smf-once]");
    for (const form of forms) {
        form.addEventListener("submit", (event) => {
            if (form.dataset.smfSent || !mayLeave(form)) {
                event.preventDefault();
                return;
            }
            form.dataset.smfSent = "yes";
        });
    }
    window.addEventListener("pageshow", () => {
        for (const form of forms) {
            delete form.dataset.smfSent;
        }
    });
    // What was typed into the row's own form is not saved by a move.
    const own = document.querySelector("#content-main > form[id$='_form']");
    let isEdited = false;
    own?.addEventListener("input", () => { isEdited = true; });
    own?.addEventListener("change", () => { isEdited = true; });
    function mayLeave(form) {
        return !isEdited || !form.dataset.smfUnsaved || window.confirm(form.dataset.smfUnsaved);
    }
});
