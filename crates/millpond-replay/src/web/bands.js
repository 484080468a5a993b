// The bands of a picture and their looks. The first have a hue each, and the next the same hues in stripes.

const HUES = 5;
const BANDS = 2 * HUES;
// All other groups, and blocks that are not listed one by one.
const REST = BANDS;
const SMALL = BANDS + 1;
// Bytes lost to rounding, blocks that wait for a stream, and free memory.
const WASTE = BANDS + 2;
const WAITING = BANDS + 3;
const UNUSED = BANDS + 4;

// The class of a look in the style sheet.
const LOOKS = [...Array.from({ length: BANDS }, (_, band) => `tag-${band}`), 'others', 'small', 'waste', 'waiting', 'free'];

// Returns the looks of all bands: the colour, the colour of the stripes, and their slope, which is 0 without stripes. The second list has
// the same looks dimmed.
function bandLooks() {
  const plain = (colour) => ({ colour, stripe: colour, slope: 0 });
  const striped = (colour) => ({ colour, stripe: mixed(colour, 0.5), slope: 1 });
  const hues = ink.tag.map(rgb);
  const others = { ...striped(rgb(ink.rest)), slope: -1 };
  const [small, waste, waiting, unused] = [ink.faint, ink.waste, ink.mark, ink.free].map(rgb);
  const looks = [...hues.map(plain), ...hues.map(striped), others, plain(small), plain(waste), striped(waiting), plain(unused)];
  return [looks, looks.map(({ colour, stripe, slope }) => ({ colour: faded(colour), stripe: faded(stripe), slope }))];
}

// Returns whether a pixel belongs to a stripe.
function isStripe(x, y, slope) {
  return slope !== 0 && ((x + slope * y) & 7) > 4;
}

// Returns the fill style of a look for a canvas.
function lookFill(pen, { colour, stripe, slope }) {
  if (slope === 0) return `rgb(${colour})`;
  const tile = document.createElement('canvas');
  tile.width = tile.height = 8;
  const of = tile.getContext('2d');
  for (let y = 0; y < 8; y++) {
    for (let x = 0; x < 8; x++) {
      of.fillStyle = `rgb(${isStripe(x, y, slope) ? stripe : colour})`;
      of.fillRect(x, y, 1, 1);
    }
  }
  return pen.createPattern(tile, 'repeat');
}
