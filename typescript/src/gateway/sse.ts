/** Server-sent events, read as they come. */
import { read } from "../json.js";

/** An event by its name, with its JSON: an object. */
export interface Told {
  kind: string;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  value: any;
}

/**
 * Of server-sent events. What else Unicode, and `.` of an expression, take for the end of a line (U+2028, U+2029) is a part of the
 * text.
 */
const LINE_ENDS = /\r\n|\n|\r/;

/** Makes events of text, however it was cut on its way. Those that cannot be read are left out. */
export class EventReader {
  #rest = "";
  #wasCr = false;
  #kind = "";
  #data: string[] = [];

  /** The events that end within this piece. */
  take(piece: string): Told[] {
    if (piece === "") return [];
    // A line feed behind a carriage return that came before it ends no line of its own.
    const text = this.#wasCr && piece.startsWith("\n") ? piece.slice(1) : piece;
    this.#wasCr = piece.endsWith("\r");
    const lines = (this.#rest + text).split(LINE_ENDS);
    this.#rest = lines.pop()!;
    return lines.map((line) => this.#line(line)).filter((told) => told !== undefined);
  }

  /** The event that ends with this line, if one does, and can be read. */
  #line(line: string): Told | undefined {
    if (line !== "") {
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
      if (field === "event") this.#kind = value;
      else if (field === "data") this.#data.push(value);
      return undefined;
    }
    const [kind, data] = [this.#kind, this.#data];
    [this.#kind, this.#data] = ["", []];
    try {
      const value = read(data.join("\n"));
      return typeof value === "object" && value !== null && !Array.isArray(value) ? { kind, value } : undefined;
    } catch {
      return undefined;
    }
  }
}
