/** Examples of texts for each kind of model. */

const SINGLE = {
  label: {en: "Turn on the light in the kitchen.", ko: "부엌에 불 좀 켜 줘."},
  labels: {en: "Thank you, that made my day!", ko: "고마워요, 덕분에 기분이 좋아졌어요!"},
  value: {en: "The film was a pleasant surprise.", ko: "기대보다 훨씬 재미있는 영화였어요."},
  entities: {en: "Marie Curie moved from Warsaw to Paris in 1891.", ko: "세종대왕은 1397년에 한양에서 태어났다."},
};
const EXAMPLES = {
  text: {en: {text: "The train to the coast leaves at nine."}, ko: {text: "바다로 가는 기차는 아홉 시에 떠난다."}},
  "text text_pair": {
    en: {text: "A man is playing the guitar.", text_pair: "Somebody plays an instrument."},
    ko: {text: "한 남자가 기타를 치고 있다.", text_pair: "누군가 악기를 연주한다."},
  },
  "context question": {
    en: {question: "When was the bridge opened?",
      context: "The bridge was designed in 1928. It was opened on 3 May 1932 and is 500 metres long."},
    ko: {question: "다리는 언제 개통되었나요?", context: "이 다리는 1928년에 설계되었다. 1932년 5월 3일에 개통되었으며 길이는 500미터이다."},
  },
  "choices prompt": {
    en: {prompt: "She opens her umbrella because", choices: "it is raining.\nit is dark.\nshe is hungry."},
    ko: {prompt: "그녀가 우산을 편 이유는", choices: "비가 오기 때문이다.\n어둡기 때문이다.\n배가 고프기 때문이다."},
  },
};

/** The examples for a model's inputs, a list of {lang, texts}; the Korean one only for models with Hangul. */
export function findExamples(names, display, hangul) {
  const examples = {...EXAMPLES[[...names].sort().join(" ")]};
  const single = names.length === 1 && SINGLE[display];
  if (single) for (const lang in examples) examples[lang] = {text: single[lang]};
  return Object.entries(examples).filter(([lang]) => lang === "en" || hangul)
    .map(([lang, texts]) => ({lang, texts}));
}
