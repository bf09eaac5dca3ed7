/**
 * Frames: a length of four bytes, big-endian, followed by JSON of that length. Both sides reject a frame above the
 * common bound.
 */
import { read as parse } from "../json.js";

/** Maximum bytes of a frame's JSON. The worker has the same bound. */
export const FRAME_BYTES_MAX = 4 * 1024 * 1024;
/** The bound as text. */
export const BOUND = `${FRAME_BYTES_MAX} bytes (4 MiB)`;

const LENGTH_BYTES = 4;

/** A frame exceeds the common bound. */
export class FrameTooLarge extends Error {}

/**
 * Encodes a frame. Replaces half of a surrogate pair, which the worker could not read.
 *
 * @throws {FrameTooLarge} The frame would exceed the bound.
 * @throws {Error} The message cannot be encoded as JSON.
 */
export function encode(message: object): Buffer {
  const text = JSON.stringify(message, (_key, value) => (typeof value === "string" ? value.toWellFormed() : value));
  const body = Buffer.from(text);
  if (body.length > FRAME_BYTES_MAX) throw new FrameTooLarge(`a frame of ${body.length} bytes; at most ${BOUND} are allowed`);
  const length = Buffer.alloc(LENGTH_BYTES);
  length.writeUInt32BE(body.length);
  return Buffer.concat([length, body]);
}

/** Cuts received bytes into messages. */
export class FrameReader {
  #received: Buffer = Buffer.alloc(0);

  /** @throws {FrameTooLarge} A frame's length exceeds the bound, so the rest of the stream cannot be read. */
  *push(bytes: Buffer): Generator<any> {
    this.#received = Buffer.concat([this.#received, bytes]);
    while (this.#received.length >= LENGTH_BYTES) {
      const length = this.#received.readUInt32BE();
      if (length > FRAME_BYTES_MAX) throw new FrameTooLarge(`a frame of ${length} bytes; at most ${BOUND} are allowed`);
      const end = LENGTH_BYTES + length;
      if (this.#received.length < end) return;
      const body = this.#received.subarray(LENGTH_BYTES, end).toString();
      this.#received = this.#received.subarray(end);
      yield parse(body);
    }
  }
}
