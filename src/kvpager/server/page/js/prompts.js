// What the quick buttons send.

export const ANSWERABLE = [
  "Why does the moon change its shape?",
  "Explain virtual memory to somebody who has a kitchen.",
  "What is a page table for?",
  "Name three uses of a rainy afternoon.",
  "How does a lock keep a canal level?",
];

export const PREFIX = [
  "An operating system gives every program a memory of its own. The program counts its addresses from zero and never",
  "learns where its bytes lie. A table says for each page of addresses which frame of the real memory holds it, and the",
  "table is the only thing that has to change when a page moves. Two programs may have the same frame in their tables",
  "as long as neither writes; the first that does gets a copy, and only then does the copy cost anything. A page that",
  "nobody has asked for in a long time can go to a slower place, and comes back when its address is used again. The",
  "same holds for the keys and values that a language model keeps of what it has read. They grow by a little with each",
  "token, nobody knows beforehand how long an answer will be, and many conversations begin with the same words. So they",
  "too live in pages of a fixed size, in frames of one pool, behind a table for each conversation.",
].join(" ");

export const QUESTIONS = [
  "What does a program never learn?",
  "Who pays for a copy, and when?",
  "Where does an idle page go?",
  "What do many conversations share?",
  "Why is the size of a page fixed?",
  "What has to change when a page moves?",
  "What grows with each token?",
  "Sum it up in one line.",
];

const SUBJECTS = ["the harbour", "an old map", "the night train", "a field of rye", "the third floor", "a borrowed clock", "the long bridge"];
const VERBS = ["is drawn twice", "waits for the tide", "has lost its key", "was counted again", "stands in the rain", "is older than it looks"];

/** A text of about this many characters in which no two sentences are the same. */
export function longText(characters) {
  const sentences = [];
  for (let page = 1, length = 0; length < characters; page++) {
    const sentence = `On page ${page}, ${SUBJECTS[page % SUBJECTS.length]} ${VERBS[(page * 5) % VERBS.length]}, as note ${page * 37} says.`;
    sentences.push(sentence);
    length += sentence.length + 1;
  }
  return sentences.join(" ").slice(0, characters);
}
