// Base64 to typed arrays. A frame's arrays are little-endian, as is every machine that runs a browser.

export const decodeBytes =
  typeof Uint8Array.fromBase64 === "function"
    ? (text) => Uint8Array.fromBase64(text)
    : (text) => {
        const binary = atob(text);
        const bytes = new Uint8Array(binary.length);
        for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
        return bytes;
      };

export const decodeUint16 = (text) => new Uint16Array(decodeBytes(text).buffer);
export const decodeUint32 = (text) => new Uint32Array(decodeBytes(text).buffer);
