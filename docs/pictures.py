"""Makes the pictures of the README in docs/pictures: a fine-tuned model's report, and the page of `keras-bert serve`.

    python docs/pictures.py [FOLDER]        (default: build/pictures)

Fine-tunes MiniLM on demo-176 and exports the model, unless FOLDER already has both. Needs `make test`'s environment,
chromium and chromedriver. About five minutes on 2 cores; without the training, half a minute.
"""

import contextlib
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

ROOT = pathlib.Path(__file__).parents[1]
QUESTION = "could you wake me at a quarter to six tomorrow"


def main(folder):
    data, model, answers = folder / "data", folder / "model", folder / "answers"
    if not answers.exists():
        run(ROOT / "examples/intents/build.py", data)
        keras_bert("finetune", f"--train={data}/train.tsv", f"--valid={data}/valid.tsv", "--model=minilm",
                   f"--output={model}", "--epochs=4", "--learning_rate=4e-4", "--overwrite")
        keras_bert("export", "text-model", f"--model={model}", f"--output={answers}")
    pictures = ROOT / "docs/pictures"
    pictures.mkdir(exist_ok=True)
    save(report(model), pictures / "report.png")
    with serving(answers) as url:
        screenshot(url, folder / "page.png")
    save(Image.open(folder / "page.png"), pictures / "page.png")


def run(*command):
    subprocess.run([sys.executable, *command], check=True)


def keras_bert(*arguments):
    run("-m", "keras_bert.cli", *arguments)


def report(model):
    """Returns three of the pictures that `finetune` draws as one: the learning curves above, two others below."""
    curves, confusions, calibration = (
        Image.open(model / f"{name}.png") for name in ("learning_curves", "confusions", "calibration"))
    width = confusions.width + calibration.width
    curves = resize(curves, width)
    picture = Image.new("RGB", (width, curves.height + max(confusions.height, calibration.height)), "white")
    for image, place in ((curves, (0, 0)), (confusions, (0, curves.height)),
                         (calibration, (confusions.width, curves.height))):
        picture.paste(image, place)
    return resize(picture, 1400)


def resize(image, width):
    return image.resize((width, image.height * width // image.width), Image.Resampling.LANCZOS)


@contextlib.contextmanager
def serving(model):
    """Runs `keras-bert serve` within the block, on free ports; gives the address of its page."""
    server = subprocess.Popen([sys.executable, "-m", "keras_bert.cli", "serve", f"--model=intents={model}", "--port=0",
                               "--grpc_port=0"], stderr=subprocess.PIPE, text=True)
    try:
        url = next(match[0] for line in server.stderr if (match := re.search(r"http://[\d.]+:\d+/", line)))
        while not is_ready(url):
            time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.communicate()


def is_ready(url):
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(f"{url}readyz"):
        return True


def screenshot(url, path):
    """Asks the page a question and saves what it shows."""
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {  # no transitions
            "features": [{"name": "prefers-reduced-motion", "value": "reduce"}]})
        set_size(driver, 1100, 700)
        driver.get(url)
        find = WebDriverWait(driver, 120).until
        find(lambda _: driver.find_elements(By.CSS_SELECTOR, "#field-text"))[0].send_keys(QUESTION)
        driver.find_element(By.CSS_SELECTOR, "#question .actions button").click()
        find(lambda _: driver.find_elements(By.CSS_SELECTOR, "#words .word"))
        find(lambda _: driver.find_element(By.ID, "answer").get_attribute("aria-busy") == "false")
        set_size(driver, 1100, driver.execute_script("return document.documentElement.scrollHeight"))
        driver.save_screenshot(str(path))
    finally:
        driver.quit()


def set_size(driver, width, height):
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})


def save(image, path):
    """Writes a PNG of 128 colours, which is a third of the size."""
    image.convert("RGB").quantize(128).save(path, optimize=True)
    print(path, image.size, f"{path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/pictures"))
