// What every picture over the run has: the wheel, a cross hair, dots, and bytes along an axis.

// Pointer: a drag zooms to its range, shift and drag pans; `act` says what hovering, a click and leaving do. The picture has a canvas, a
// scale and a state, and draws its `brush`.
function brushable(picture, act) {
  const { canvas, state } = picture;
  let start = null;
  const local = (event, side) => {
    const box = canvas.getBoundingClientRect();
    return side === 'y' ? event.clientY - box.top : event.clientX - box.left;
  };
  canvas.addEventListener('pointermove', (pointer) => {
    const x = local(pointer);
    if (!start) {
      act.hover(x, local(pointer, 'y'));
      return;
    }
    if (start.pan) {
      const shift = picture.scale.at(start.x) - picture.scale.at(x);
      state.look(start.from + shift, start.to + shift);
      start = { ...start, x, from: state.from, to: state.to };
    } else if (picture.brush || Math.abs(x - start.x) > 4) {
      const { left, span } = picture.scale;
      const clamp = (at) => Math.min(Math.max(at, left), left + span);
      picture.brush = [clamp(start.x), clamp(x)];
      state.set({ hover: null });
      state.touch('brush');
    }
  });
  canvas.addEventListener('pointerdown', (pointer) => {
    if (pointer.button > 1) return;
    canvas.setPointerCapture(pointer.pointerId);
    start = { x: local(pointer), pan: pointer.shiftKey || pointer.button === 1, from: state.from, to: state.to };
  });
  canvas.addEventListener('pointerup', (pointer) => {
    if (!start) return;
    if (picture.brush) {
      const [a, b] = picture.brush.map((x) => picture.scale.at(x)).sort((p, q) => p - q);
      picture.brush = null;
      state.look(a, b);
      state.touch('brush');
    } else if (!start.pan) {
      act.click(local(pointer), local(pointer, 'y'));
    }
    start = null;
  });
  canvas.addEventListener('pointercancel', () => {
    start = picture.brush = null;
    state.touch('brush');
  });
  canvas.addEventListener('pointerleave', () => act.leave());
  canvas.addEventListener('dblclick', () => state.look(0, state.end));
  wheelZoom(canvas, state, (x) => picture.scale.at(x));
}

// The wheel zooms with ctrl (or a pinch), and alone where the picture has the focus; sideways pans.
function wheelZoom(canvas, state, at) {
  canvas.addEventListener('wheel', (wheel) => {
    const x = wheel.clientX - canvas.getBoundingClientRect().left;
    if (Math.abs(wheel.deltaX) > Math.abs(wheel.deltaY)) {
      state.pan(wheel.deltaX / canvas.clientWidth);
    } else if (wheel.ctrlKey || wheel.metaKey || document.activeElement === canvas) {
      state.zoom(Math.exp(Math.max(Math.min(wheel.deltaY, 120), -120) * 0.0025), at(x));
    } else {
      return;
    }
    wheel.preventDefault();
  }, { passive: false });
}

// The part that is being chosen by a drag.
function drawBrush(context, brush, top, bottom) {
  if (!brush) return;
  const [a, b] = [Math.min(...brush), Math.max(...brush)];
  context.fillStyle = ink.water;
  context.globalAlpha = 0.6;
  context.fillRect(a, top, b - a, bottom - top);
  context.globalAlpha = 1;
  context.strokeStyle = ink['water-line'];
  context.lineWidth = 1;
  context.strokeRect(a + 0.5, top + 0.5, b - a, bottom - top - 1);
}

// What a picture says that has nothing to show.
function drawNotice(context, text, x) {
  context.fillStyle = ink.muted;
  context.font = `13px ${ink.font}`;
  context.fillText(text, x, 20);
}

// The outline of an area from a floor up to values that are evenly apart.
function areaOf(left, span, floor, values, y) {
  const path = new Path2D();
  path.moveTo(left, floor);
  values.forEach((value, i) => path.lineTo(left + ((i + 0.5) * span) / values.length, y(value)));
  path.lineTo(left + span, floor);
  return path;
}

function crosshair(context, x, top, bottom, state) {
  context.strokeStyle = ink.ink;
  context.globalAlpha = state.hover === null && state.pinned === null ? 0.35 : 0.7;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(Math.round(x) + 0.5, top);
  context.lineTo(Math.round(x) + 0.5, bottom);
  context.stroke();
  context.globalAlpha = 1;
  if (state.hover === null) {
    context.fillStyle = ink.ink;
    context.beginPath();
    context.moveTo(x - 4, top - 2);
    context.lineTo(x + 5, top - 2);
    context.lineTo(x + 0.5, top + 5);
    context.fill();
  }
}

function dot(context, x, y, colour, radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fillStyle = colour;
  context.fill();
  context.strokeStyle = ink.panel;
  context.lineWidth = 1.5;
  context.stroke();
}

// How text beside an axis is written.
function axisText(context, align, baseline) {
  context.font = `11px ${ink.font}`;
  context.fillStyle = ink.muted;
  context.textAlign = align;
  context.textBaseline = baseline;
}

// Lines at round numbers of bytes between two, with the numbers at their left: as many as have room in a picture with so many rows.
function byteLines(context, { left, span }, y, lo, hi, rows) {
  axisText(context, 'right', 'middle');
  context.strokeStyle = ink.rule;
  context.lineWidth = 1;
  const step = niceStep((hi - lo) / Math.max(rows, 2), 2);
  for (let value = Math.ceil(lo / step) * step; value <= hi; value += step) {
    const at = Math.round(y(value)) + 0.5;
    context.beginPath();
    context.moveTo(left, at);
    context.lineTo(left + span, at);
    context.stroke();
    context.fillText(value === 0 ? '0' : shortBytes(value, step), left - 8, at);
  }
}

// Bytes of addresses at their left, from 0 at `bottom` up to `extent` at the top.
function byteMarks(context, { left }, bottom, extent) {
  axisText(context, 'right', 'middle');
  const step = niceStep(extent / Math.max(bottom / 56, 2), 2);
  for (let value = 0; value <= extent; value += step) {
    const y = bottom - (value / extent) * bottom;
    if (y > 6) context.fillText(value === 0 ? '0' : shortBytes(value, step), left - 8, Math.min(y, bottom - 4));
  }
}

// What the horizontal axis says, at a height; nothing so near to an end that it would be cut.
function axisMarks(context, axis, scale, y) {
  axisText(context, 'center', 'alphabetic');
  for (const tick of axis.ticks(scale.span)) {
    const x = scale.x(tick.event);
    if (x >= scale.left + 12 && x <= scale.left + scale.span - 12) context.fillText(tick.text, x, y);
  }
}

function shortBytes(value, step) {
  let unit = 0;
  while (unit < UNITS.length - 1 && value >= 1024 ** (unit + 1)) unit++;
  const scaled = value / 1024 ** unit;
  const digits = Math.max(0, Math.ceil(-Math.log10((step / 1024 ** unit) * 1.001)));
  return `${scaled.toFixed(Math.min(digits, 3))} ${UNITS[unit]}`;
}

// Puts a card beside a point of a picture that is `wide` wide.
function placeTip(tip, x, y, wide) {
  tip.hidden = false;
  const own = tip.offsetWidth;
  tip.style.left = `${Math.max(0, x + 18 + own > wide ? x - own - 18 : x + 18)}px`;
  tip.style.top = `${y + 18}px`;
}

function hideTip(tip) {
  tip.hidden = true;
}
