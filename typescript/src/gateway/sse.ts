/** Reads server-sent events from a stream of text. */
import { read } from "../json.js";

/** An event: its name and its JSON object. */
export interface ServerSentEvent {
  kind: string;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  value: any;
}

/** Other line ends of Unicode and of `.` in regular expressions (U+2028, U+2029) are part of the text. */
const LINE_ENDS = /\r\n|\n|\r/;

/** Parses events from text, however it was split. Skips unreadable events. */
export class EventReader {
  #rest = "";
  #wasCr = false;
  #kind = "";
  #data: string[] = [];

  take(piece: string): ServerSentEvent[] {
    if (piece === "") return [];
    // A line feed after the previous piece's carriage return ends the same line.
    const text = this.#wasCr && piece.startsWith("\n") ? piece.slice(1) : piece;
    this.#wasCr = piece.endsWith("\r");
    const lines = (this.#rest + text).split(LINE_ENDS);
    this.#rest = lines.pop()!;
    return lines.map((line) => this.#line(line)).filter((event) => event !== undefined);
  }

  #line(line: string): ServerSentEvent | undefined {
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
