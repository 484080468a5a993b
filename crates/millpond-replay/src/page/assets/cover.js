// Rectangles on pixels, each pixel with the part that is covered.

// Visits each pixel that a rectangle touches, with the part of it that lies inside.
function cover(width, height, x0, x1, y0, y1, visit) {
  x0 = Math.max(x0, 0);
  x1 = Math.min(x1, width);
  y0 = Math.max(y0, 0);
  y1 = Math.min(y1, height);
  if (x1 <= x0 || y1 <= y0) return;
  for (let y = Math.floor(y0); y < y1; y++) {
    const high = Math.min(y + 1, y1) - Math.max(y, y0);
    for (let x = Math.floor(x0); x < x1; x++) {
      visit(y * width + x, high * (Math.min(x + 1, x1) - Math.max(x, x0)));
    }
  }
}

// `cover` for colours, written out: this is the loop that a redraw spends its time in.
function fill(paint, width, height, x0, x1, y0, y1, [r, g, b]) {
  if (x0 < 0) x0 = 0;
  if (x1 > width) x1 = width;
  if (y1 > height) y1 = height;
  if (x1 <= x0 || y1 <= y0) return;
  const left = Math.floor(x0);
  for (let y = Math.floor(y0); y < y1; y++) {
    const high = Math.min(y + 1, y1) - Math.max(y, y0);
    let at = (y * width + left) * 4;
    for (let x = left; x < x1; x++, at += 4) {
      const part = high * (Math.min(x + 1, x1) - Math.max(x, x0));
      paint[at] += r * part;
      paint[at + 1] += g * part;
      paint[at + 2] += b * part;
      paint[at + 3] += part;
    }
  }
}
