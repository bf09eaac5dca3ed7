/** Images in results of tools. */

/** First bytes of the formats that every model provider accepts. */
const SIGNATURES: readonly [string, string][] = [
  ["\x89PNG\r\n\x1a\n", "image/png"],
  ["\xff\xd8\xff", "image/jpeg"],
  ["GIF87a", "image/gif"],
  ["GIF89a", "image/gif"],
];

/** A part of a result with images, as a content block of MCP. */
export type ContentBlock = { type: "text"; text: string } | { type: "image"; data: string; mimeType: string };

/**
 * An image that a tool returns, alone or in an array with strings. Models whose protocol permits images in results see
 * the image; for other models, a text describes it.
 */
export class Image {
  /** Media type, which follows from the data. */
  readonly mediaType: string;

  /**
   * Takes an image as PNG, JPEG, GIF or WebP.
   *
   * @throws {TypeError} The data has another format.
   */
  constructor(readonly data: Uint8Array) {
    const start = Buffer.from(data.subarray(0, 12)).toString("latin1");
    const found = SIGNATURES.find(([signature]) => start.startsWith(signature))?.[1];
    const isWebp = start.startsWith("RIFF") && start.endsWith("WEBP");
    if (found === undefined && !isWebp) {
      const shown = JSON.stringify(start.slice(0, 8));
      throw new TypeError(`not an image that models can read: it starts with ${shown}; expected PNG, JPEG, GIF or WebP`);
    }
    this.mediaType = found ?? "image/webp";
  }

  /** The image as a content block. */
  toJSON(): ContentBlock {
    return { type: "image", data: Buffer.from(this.data).toString("base64"), mimeType: this.mediaType };
  }
}

/** Returns the content blocks of a result with images, or `undefined` for any other result. */
export function contentBlocks(result: unknown): ContentBlock[] | undefined {
  const parts: unknown[] = Array.isArray(result) ? result : [result];
  if (!parts.some((part) => part instanceof Image)) return undefined;
  const blocks: ContentBlock[] = [];
  for (const part of parts) {
    if (part instanceof Image) blocks.push(part.toJSON());
    else if (typeof part === "string") blocks.push({ type: "text", text: part });
    else return undefined;
  }
  return blocks;
}
