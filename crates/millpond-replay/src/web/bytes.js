// Columns of integers, as encode.rs writes them: base64 around length-prefixed deflate streams of
// varints. Everything stays below 2^53, so plain numbers are exact.

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// The sections of the blob in the element `id`; the element's text is dropped once read.
async function sections(id) {
  const element = document.getElementById(id);
  if (!element) return null;
  const bytes = fromBase64(element.textContent.trim());
  element.textContent = '';
  return Promise.all(sectionsOf(bytes).map(inflate));
}

// Sections apart, each behind its length.
function sectionsOf(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const parts = [];
  for (let at = 0; at < bytes.length;) {
    const length = view.getUint32(at, true);
    parts.push(bytes.subarray(at + 4, at + 4 + length));
    at += 4 + length;
  }
  return parts;
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  get more() {
    return this.at < this.bytes.length;
  }

  next() {
    let byte = this.bytes[this.at++];
    if (byte < 0x80) return byte;
    let value = byte & 0x7f;
    let scale = 128;
    do {
      byte = this.bytes[this.at++];
      value += (byte & 0x7f) * scale;
      scale *= 128;
    } while (byte >= 0x80);
    return value;
  }

  signed() {
    return unzigzag(this.next());
  }
}

function unzigzag(value) {
  return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
}

// Lets the browser paint and answer between two pieces of work.
function breathe() {
  return new Promise((done) => setTimeout(done));
}
