"""The page of `keras-bert serve` in a browser, asked for each kind of answer; what it shows is what REST answers."""

import json
import os
import shlex
import shutil
import urllib.request

import pytest
import tensorflow as tf

pytest.importorskip("selenium", reason="needs selenium: pip install selenium")
from browser_models import INTENTS, TOPICS, write_models
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait
from serving_server import serving, write_echo
from tensorflow_serving.apis import prediction_log_pb2

pytestmark = [pytest.mark.slow("the page in a browser"), pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs chromium and chromedriver")]
AXE = os.environ.get("AXE_CORE")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(write_models(tmp_path_factory.mktemp("models"))) as server:
        yield server


@pytest.fixture(scope="module")
def driver():
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


class Page:
    """The page of a server in a browser."""

    def __init__(self, driver, server):
        self.driver, self.server = driver, server
        driver.get(f"http://127.0.0.1:{server.port}/")

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector):
        return [element.text for element in self.all(selector)]

    def wait(self, condition):
        waiting = WebDriverWait(self.driver, 60, 0.05, ignored_exceptions=[StaleElementReferenceException])
        return waiting.until(lambda _: condition())

    def idle(self):
        self.wait(lambda: self.one("#answer").get_attribute("aria-busy") == "false" and not self.weighs())

    def weighs(self):
        return self.one("#inside").get_attribute("aria-busy") == "true"

    def choose(self, name):
        Select(self.one("#model")).select_by_visible_text(name)
        self.wait(lambda: self.one("#fields").get_attribute("data-model") == name)

    def submit(self):
        self.one("#question button:not([type=button])").click()

    def ask(self, model, **texts):
        """Fills in the fields and asks; returns what REST answers to the same."""
        self.choose(model)
        for name, text in texts.items():
            # chromedriver types no emoji
            self.driver.execute_script("arguments[0].value = arguments[1]", self.one(f"#field-{name}"), text)
        self.submit()
        self.idle()
        row = {name: text.splitlines() if name == "choices" else text for name, text in texts.items()}
        return self.server.predict(model, instances=[row])[0]

    def bars(self, within="#answer > .bars"):
        """List of (name, percentage)."""
        return [tuple(part.get_attribute("textContent") for part in bar.find_elements(By.CSS_SELECTOR, "span, b"))
                for bar in self.all(f"{within} li")]

    def marks(self):
        """List of (place in the text, marked text, label), counted as Python does."""
        return [tuple(mark) for mark in self.driver.execute_script("""
            return [...document.querySelectorAll("mark")].map((mark) => {
              let before = "";
              for (let node = mark.previousSibling; node; node = node.previousSibling)
                before = (node.tagName ? node.firstChild : node).textContent + before;
              return [[...before].length, mark.firstChild.textContent, mark.querySelector("small")?.textContent ?? ""];
            })""")]


@pytest.fixture
def page(driver, server):
    page = Page(driver, server)
    page.idle()
    yield page
    assert driver.get_log("browser") == []


def percent(value):
    return f"{100 * value:.1f}%"


def test_each_kind_of_answer_is_what_rest_answers(page):
    answer = page.ask("intents", text="play 🎵 음악 & <b>song</b>")
    rows = sorted(zip(INTENTS, answer["probabilities"]), key=lambda row: -row[1])
    assert rows[0][0] == answer["label"]
    assert page.texts(".headline") == [answer["label"] if answer["in_scope"] else "Out of scope"]
    assert page.bars() == [(label, percent(value)) for label, value in rows[:8]]
    assert answer["in_scope"] or f"nearest label, {answer['label']}, is" in page.one("#answer").text
    page.one("summary").click()
    assert page.bars("#answer > details .bars") == [(label, percent(value)) for label, value in rows[8:]]

    for text in ("play 🎵 음악", "?"):
        answer = page.ask("topics", text=text)
        rows = sorted(zip(TOPICS, answer["probabilities"]), key=lambda row: -row[1])
        held = [label for label, value in rows if value >= 0.5]
        assert page.texts(".headline") == [", ".join(held) or "No label"]
        assert [label for label in answer["labels"] if label] == held
        assert page.bars() == [(label, percent(value)) for label, value in rows[:8]]
        assert page.texts("#answer > .bars .labelled span") == held[:8]

    value = page.ask("likeness", text="turn on the light")
    assert float(page.one(".headline").text) == pytest.approx(value, rel=1e-4)

    for text in ("play 🎵🎶 some music at the 각각의 집 now,\nturn the lamp off 👩\u200d👩\u200d👧 for my table.",
                 "각각의 집", "각의 ﬁ a\u0301", "?"):
        answer = page.ask("names", text=text)
        entities = list(zip(*(answer[f"entity_{column}"] for column in ("start", "text", "label", "score"))))
        assert page.marks() == [(start, part, label) for start, part, label, _ in entities if start >= 0]
        assert page.bars() == [(f"{part} · {label}", percent(score)) for _, part, label, score in entities]
        page.one("summary").click()
        assert len(page.bars("details .bars")) == len(answer["word_start"])

    answer = page.ask("frames", text="각각의 집 music 🎵 now")
    entities = list(zip(*(answer[f"entity_{column}"] for column in ("start", "text", "label", "score"))))
    assert page.texts(".headline") == [answer["label"]] and len(entities) == 2
    assert page.marks() == [entity[:3] for entity in entities]
    assert page.bars()[3:] == [(f"{part} · {label}", percent(score)) for _, part, label, score in entities]

    for context in ("🎵 play some music 각각의 집\nturn on the light, book a flight today.", "집에 🏠 가자", "?"):
        answer = page.ask("reader", question="what is it", context=context)
        assert page.marks() == ([(answer["start"], answer["answer"], "")] if answer["start"] >= 0 else [])
        assert page.texts(".headline") == [answer["answer"].replace("\n", " ") or "No answer in this context"]
        assert page.bars()[0][1] == percent(answer["score"])

    choices = ["turn the lamp off", "집에 🏠 가자", "book a flight"]
    answer = page.ask("choice", prompt="what now", choices="\n".join(choices))
    assert page.texts(".headline") == [choices[answer["choice"]]] == page.texts(".bars .best span")
    assert page.bars() == [(choice, percent(value)) for choice, value in zip(choices, answer["probabilities"])]


def words(page):
    """The words of the texts: what they say, the side that they speak for, the weight in their title."""
    return [(word.text, word.get_attribute("class").removeprefix("word").strip(), word.get_attribute("title"))
            for word in page.all("#words .word")]


def test_words_are_shaded_by_their_weights_for_each_label(page):
    page.ask("choice", prompt="what now", choices="play\nstop")
    assert page.texts("#no-words") == ["Which words count is not shown: this model does not return it."]
    page.ask("characters", text="🎵 abcdefg", text_pair="  집 and\u00a0x")
    assert page.one("#inside").is_displayed() and not page.one("#no-words").is_displayed()
    assert words(page) == [("🎵", "for", "+0.571"), ("abcdefg", "for", "+1"), ("집", "against", "-0.429"),
                           ("and", "against", "-0.429"), ("x", "against", "-0.143")]
    assert [text.get_attribute("textContent") for text in page.all("#words p")] == ["🎵 abcdefg", "  집 and\u00a0x"]
    assert not page.one("#for-label").is_displayed()
    assert page.one("#weights").text == "abcdefg +1 · 🎵 +0.571 · 집 -0.429 · and -0.429 · x -0.143"
    lines = [word.value_of_css_property("text-decoration-line") for word in page.all("#words .word")]
    assert lines == ["none"] * 2 + ["underline"] * 3  # without colours, too

    page.one("#request summary").send_keys(Keys.TAB)  # the last stop before the section
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert page.one("#weights").text == "abcdefg +1"
    webdriver.ActionChains(page.driver).move_to_element(page.all("#words .word")[2]).perform()
    assert page.one("#weights").text == "집 -0.429"

    text = "play 🎵 음악 & <b>song</b> now"
    answer = page.ask("intents", text=text)
    weights, = page.server.predict("intents", signature_name="word_weights", instances=[text])
    best = sorted(range(len(INTENTS)), key=lambda i: -answer["probabilities"][i])[:5]
    assert page.texts("#label option") == [f"{INTENTS[i]} {percent(answer['probabilities'][i])}" for i in best]
    for i in best[:2]:
        Select(page.one("#label")).select_by_value(str(i))
        for (word, side, title), of_word in zip(words(page), weights["word_weight"], strict=True):
            assert word in text and float(title.split()[0]) == pytest.approx(100 * of_word[i], abs=0.051)
            assert side in ("", "for" if of_word[i] > 0 else "against")


HOLD = """
    const {fetch} = window;
    window.fetch = (path, options) => options.body?.includes('"word_weights"') ? %s : fetch(path, options);"""


def test_what_goes_wrong_or_takes_long_is_told_and_the_page_goes_on(page):
    page.choose("characters")
    page.one("#field-text").send_keys("one")
    page.one("#field-text_pair").send_keys("  ")
    page.submit()  # a blank text is not sent
    page.wait(lambda: page.driver.switch_to.active_element.get_attribute("id") == "field-text_pair")
    assert page.one("#answer").text == "Nothing asked yet."

    page.ask("names", text="play")
    page.driver.execute_script("document.querySelector('#field-text').value = 'x'.repeat(100001)")
    page.submit()
    page.wait(lambda: page.texts("#answer .error") == [
        "text: row 1: a text may have at most 100000 characters (--max_characters); got 100001"])
    assert [entry["message"] for entry in page.driver.get_log("browser") if "413" not in entry["message"]] == []

    page.ask("characters", text="one", text_pair="two")
    assert page.texts("#answer .error") == []
    # The answer does not wait for the words.
    page.driver.execute_script(HOLD % (
        "new Promise((resolve) => { window.release = () => resolve(fetch(path, options)); })") +
        "document.querySelector('#field-text').value = 'another'")
    page.submit()
    page.wait(lambda: page.texts(".headline") == ["0.57143"])  # (7 - 3) / 7
    page.wait(lambda: page.one("#answer").get_attribute("aria-busy") == "false")
    assert "ms round trip" in page.one("#latency").text
    assert page.weighs() and page.texts("#words .word") == ["one", "two"]  # of the texts before
    page.driver.execute_script("window.release()")
    page.idle()
    assert page.texts("#words .word") == ["another", "two"]
    # Words that cannot be shown leave the answer.
    page.driver.execute_script(HOLD % 'Promise.reject(new Error("no network"))')
    page.submit()
    page.wait(lambda: page.texts("#answer .error") == ["Which words count: no network"])
    assert page.texts(".headline") == ["0.57143"] and not page.one("#inside").is_displayed()
    page.idle()


TEXTS = {"intents": ["text"], "likeness": ["text"], "reader": ["question", "context"],
         "choice": ["prompt", "choices"], "characters": ["text", "text_pair"]}


def test_examples_are_filled_in_and_the_request_is_shown_as_a_command(page):
    for model, names in TEXTS.items():
        page.choose(model)
        assert len(page.all("#examples button")) == 1 + (model == "intents")  # its labels have Hangul
        button = page.one("#examples button")
        button.click()
        assert page.driver.switch_to.active_element.get_attribute("id") == f"field-{names[0]}"
        texts = {name: page.one(f"#field-{name}").get_attribute("value") for name in names}
        assert all(texts.values()) and texts[names[0]] == button.text
        page.ask(model, **texts)
        assert "ms round trip" in page.one("#latency").text  # no error
    assert page.texts("#fields label") == ["Text", "Second text"]
    page.choose("intents")
    korean = page.all("#examples button")[1]
    assert korean.get_attribute("lang") == "ko"
    korean.click()
    assert page.one("#field-text").get_attribute("value") == "부엌에 불 좀 켜 줘."
    answer = page.ask("intents", text="don't play 🎵 \"it\"")
    page.one("#request summary").click()
    command, url, flag, body = shlex.split(page.one("#request code").text)
    assert (command, flag) == ("curl", "-d")
    with urllib.request.urlopen(url, body.encode()) as response:
        assert json.load(response) == {"predictions": [answer], "classes": INTENTS}


def write_slow_echo(path, until):
    """Writes the model of `write_echo`, loaded once there is a file at a path: its warm-up request waits for it."""
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.model_spec.signature_name = "serving_default"
    log.predict_log.request.inputs["text"].CopyFrom(tf.make_tensor_proto([f"until {until}"]))
    extra = write_echo(path, 2) / "assets.extra"
    extra.mkdir()
    with tf.io.TFRecordWriter(str(extra / "tf_serving_warmup_requests")) as file:
        file.write(log.SerializeToString())
    return path


def test_the_page_asks_for_a_token_and_waits_while_a_model_cannot_be_loaded_or_loads(driver, tmp_path):
    (tmp_path / "token").write_text("t0ken~", encoding="utf-8")
    (tmp_path / "model/1").mkdir(parents=True)
    (tmp_path / "model/1/saved_model.pb").write_bytes(b"no SavedModel")
    with serving({"model": tmp_path / "model"}, f"--token_file={tmp_path}/token", is_ready=False) as server:
        page = Page(driver, server)
        for token, message in (("wrong", ""), ("t0ken~", "The server rejected this token.")):
            page.wait(lambda message=message: page.one("#token-dialog").get_attribute("open")
                      and page.one("#token-message").text == message)
            driver.switch_to.active_element.send_keys(token, Keys.ENTER)
        page.wait(lambda: "The model cannot be loaded: " in " ".join(page.texts("#answer .error")))
        write_slow_echo(tmp_path / "new", tmp_path / "go").rename(tmp_path / "model/2")
        page.wait(lambda: page.one("#answer").text == "The model is loading.")
        assert page.one("#answer").get_attribute("aria-busy") == "false"  # screen readers say it
        assert page.one("#answer").get_attribute("aria-live") == "polite"
        (tmp_path / "go").touch()
        page.wait(lambda: page.all("#field-text"))
        assert page.one("#version").text == "version 2" and page.texts("#answer .error") == []
        assert page.one("#answer").text == "Nothing asked yet."
        page.one("#field-text").send_keys("play some music", Keys.CONTROL, Keys.ENTER)
        page.wait(lambda: "play some music" in page.one("#answer").text)
        page.idle()
        stored = driver.execute_script("return [localStorage.length, sessionStorage.length, document.cookie]")
        assert stored == [0, 0, ""]
    assert [entry["message"] for entry in driver.get_log("browser") if "401" not in entry["message"]] == []


@pytest.mark.skipif(not AXE, reason="needs axe-core (npm pack axe-core) and AXE_CORE, the path of its axe.min.js")
@pytest.mark.parametrize("width,scheme", [(360, "light"), (1200, "dark")])
def test_nothing_overflows_and_axe_finds_nothing(page, width, scheme):
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600})
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "features": [{"name": "prefers-color-scheme", "value": scheme},
                     {"name": "prefers-reduced-motion", "value": "reduce"}]})
    with open(AXE, encoding="utf-8") as file:
        page.driver.execute_script(file.read())
    for model, texts in (("names", {"text": "play 🎵🎶 some music at the 각각의 집 now " + "x" * 90}),
                         ("characters", {"text": "play some music " * 3, "text_pair": "오늘 밤"})):
        page.ask(model, **texts)
        assert page.driver.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        assert page.driver.execute_async_script("""
            const [done] = arguments;
            axe.run().then(({violations}) => done(violations.flatMap(
              ({id, nodes}) => nodes.map(({failureSummary}) => `${id}: ${failureSummary}`))))""") == []
