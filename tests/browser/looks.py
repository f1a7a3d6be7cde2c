"""What can be seen to be wrong with a page, whatever its theme: texts that cannot be read, and what does not fit."""

from __future__ import annotations

#: The ratio that texts of this size need (WCAG 2.2, 1.4.3).
READABLE = 4.5

#: Ratios of text to what is behind it: of our badges and other texts, and of the names in the graph to their boxes.
CONTRASTS = """async () => {
    await Promise.all(document.getAnimations().map(animation => animation.finished));
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const painted = (...colors) => {  // one above the other, in whichever way they are written
        canvas.clearRect(0, 0, 1, 1);
        for (const color of colors) {
            canvas.fillStyle = color;
            canvas.fillRect(0, 0, 1, 1);
        }
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const luminance = (...colors) => {
        const [r, g, b] = painted(...colors).map(part => part / 255).map(
            part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4
        );
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ratio = (text, ground) => {
        const [dark, bright] = [luminance(ground, text), luminance(ground)].sort((a, b) => a - b);
        return (bright + 0.05) / (dark + 0.05);
    };
    const behind = element => {
        const color = getComputedStyle(element).backgroundColor;
        return painted(color)[3] > 0 || !element.parentElement ? color : behind(element.parentElement);
    };
    const texts = [...document.querySelectorAll(
        ".smf-badge, .smf-quiet, .smf-why, .smf-preview *, .smf-panel *"
    )].filter(
        element => element.checkVisibility() && !element.closest("svg")
            && [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim())
    ).map(element => [
        `${element.tagName} ${element.className} ${element.textContent.trim().slice(0, 40)}`,
        ratio(getComputedStyle(element).color, behind(element))
    ]);
    const names = [...document.querySelectorAll(".smf-graph .smf-state text")].map(text => [
        `graph ${text.textContent}`,
        ratio(getComputedStyle(text).fill, getComputedStyle(text.parentElement.querySelector(".smf-box")).fill)
    ]);
    return [...texts, ...names];
}"""


def faint_texts(page):
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for text, ratio in page.evaluate(CONTRASTS):
            if ratio < READABLE:
                yield f"cannot be read in {scheme}, at {ratio:.1f}: {text}"


def sideways_scrolls(page):
    for width in (1280, 1024, 390):
        page.set_viewport_size({"width": width, "height": 800})
        excess = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if excess > 0:
            yield f"at {width} pixels it is {excess} too wide"
