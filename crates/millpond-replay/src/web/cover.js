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

// `cover` for the look of a band, written out: this is the loop that a redraw spends its time in.
function fill(paint, width, height, x0, x1, y0, y1, { colour, stripe, slope }) {
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
      const ink = isStripe(x, y, slope) ? stripe : colour;
      paint[at] += ink[0] * part;
      paint[at + 1] += ink[1] * part;
      paint[at + 2] += ink[2] * part;
      paint[at + 3] += part;
    }
  }
}

// Puts coverage into a canvas. What no colour covers is free where `held` says so, and nothing elsewhere; `rowOf` gives the row of
// coverage that is drawn in a row of the picture.
function compose(image, width, height, paint, held, rowOf) {
  image.width = width;
  image.height = height;
  const pen = image.getContext('2d');
  const picture = pen.createImageData(width, height);
  const pixels = picture.data;
  const nothing = rgb(ink.void);
  const free = rgb(ink.free);
  for (let y = 0, to = 0; y < height; y++) {
    let from = rowOf(y) * width;
    for (let x = 0; x < width; x++, from++, to += 4) {
      const part = held ? Math.min(held[from], 1) : 0;
      const alpha = Math.min(paint[from * 4 + 3], 1);
      const scale = alpha > 0 ? alpha / paint[from * 4 + 3] : 0;
      for (let channel = 0; channel < 3; channel++) {
        const ground = nothing[channel] + (free[channel] - nothing[channel]) * part;
        pixels[to + channel] = ground * (1 - alpha) + paint[from * 4 + channel] * scale;
      }
      pixels[to + 3] = 255;
    }
  }
  pen.putImageData(picture, 0, 0);
}

// What lies free in ranges between pieces. Both are pairs of a place and bytes, in order of places.
function holesOf(ranges, pieces) {
  const holes = { free: 0, count: 0, largest: 0 };
  const add = (bytes) => {
    if (bytes <= 0) return;
    holes.free += bytes;
    holes.count++;
    holes.largest = Math.max(holes.largest, bytes);
  };
  let i = 0;
  for (const [from, bytes] of ranges) {
    let at = from;
    const end = from + bytes;
    for (; i < pieces.length && pieces[i][0] < end; i++) {
      add(pieces[i][0] - at);
      at = Math.max(at, pieces[i][0] + pieces[i][1]);
    }
    add(end - at);
  }
  return holes;
}
