// What a narrow window or the dark theme spoils in the outputs of a notebook: what is cut at the side, and words too pale
// for their background (WCAG 2.1, 1.4.3: a ratio of 4.5, and 3 for large letters). A picture, SVG included, brings its
// own background, so the words in it are not judged here. PANEL is the selector of the open notebook.
() => {
    const found = [], panel = document.querySelector('PANEL');
    const words = e => (e.innerText || e.textContent || e.tagName).trim().replace(/\s+/g, ' ').slice(0, 60);
    const cut = e => e.clientWidth && e.scrollWidth > e.clientWidth + 1;
    for (const e of panel.querySelectorAll('.jp-OutputArea-output, .explorer, .explorer-controls'))
        if (cut(e)) found.push(`${e.scrollWidth} px wide where ${e.clientWidth} are seen: ${words(e)}`);
    for (const e of panel.querySelectorAll('.widget-label, .widget-label-basic span, .widget-readout, .widget-button'))
        if (cut(e)) found.push(`a label is cut: ${words(e)}`);

    const colour = text => { const n = text.match(/[\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
    const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat([1]);
    const background = e => {
        const layers = [];
        for (; e; e = e.parentElement) {
            layers.push(colour(getComputedStyle(e).backgroundColor));
            if (layers.at(-1)[3] === 1) break;
        }
        return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
    };
    const linear = v => v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const seen = new Set();
    for (const area of panel.querySelectorAll('.jp-OutputArea-output')) {
        const walker = document.createTreeWalker(area, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            const e = walker.currentNode.parentElement, shown = walker.currentNode.data.trim() && e.getClientRects().length;
            if (seen.has(e) || !shown || e.closest('svg')) continue;
            seen.add(e);
            const style = getComputedStyle(e), below = background(e), size = parseFloat(style.fontSize);
            const [high, low] = [light(over(colour(style.color), below)), light(below)].sort((a, b) => b - a);
            const ratio = (high + 0.05) / (low + 0.05);
            const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
            if (ratio < (large ? 3 : 4.5)) found.push(`contrast ${ratio.toFixed(2)}: ${words(e)}`);
        }
    }
    return found;
}
