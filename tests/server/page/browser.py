"""A headless Chromium for tests of the page, and what they ask of it."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE = 90.0  # seconds; a loaded machine may need them

# Runs in the page before its own scripts do: what a browser only says once.
_WATCH = """
window.faults = [];
addEventListener('error', (event) => faults.push(String(event.message)));
addEventListener('unhandledrejection', (event) => faults.push(String(event.reason)));
const broken = (event) => faults.push(`${event.violatedDirective}: ${event.blockedURI}`);
document.addEventListener('securitypolicyviolation', broken);
window.longTasks = [];
new PerformanceObserver((list) => list.getEntries().forEach((each) => longTasks.push(each.duration)))
  .observe({ type: 'longtask', buffered: true });
"""


class Browser:
    def __init__(self, driver: Chrome) -> None:
        self.driver = driver
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH})

    def open(self, url: str, *, width: int = 1440, height: int = 900, dark: bool = False) -> None:
        """A page as one that was never here before sees it, once its first frame is drawn."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get_log("browser")
        self.driver.get(url)

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def leave(self) -> None:
        self.driver.get("about:blank")

    def until_live(self) -> None:
        self.until(lambda: self.text("#connection-words") == "live" and self.page("page.view()?.memory.count > 0"))
        self.until(lambda: self.page("page.map.count > 0"))

    def until(self, is_true: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        return WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(lambda _: is_true())

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        text: str = self.driver.execute_script("return document.querySelector(arguments[0]).textContent", selector)
        return text

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def page(self, expression: str, module: str = "main.js") -> Any:
        """An expression over ``page``, what the module exports; it may be a promise."""
        script = f"""const done = arguments[0];
        import('/page/js/{module}').then(async (page) => done({{value: await ({expression})}}))
          .catch((error) => done({{fault: String(error)}}));"""
        answer = self.driver.execute_async_script(script)
        assert "fault" not in answer, answer["fault"]
        return answer.get("value")

    def point_at(self, block: int) -> None:
        """The pointer goes to a block's cell, scrolled into sight."""
        spot = self.page(f"page.map.centreOf({block})")
        sheet = self.find("#sheet")
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", sheet)
        size = sheet.size
        x, y = round(spot["x"] - size["width"] / 2), round(spot["y"] - size["height"] / 2)
        ActionChains(self.driver, duration=0).move_to_element_with_offset(sheet, x, y).perform()

    def faults(self) -> list[str]:
        """Errors, broken rules of the policy, and what the console calls severe."""
        severe = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        return [*self.run("return window.faults"), *severe]

    def boxes(self, selector: str) -> dict[str, dict[str, float]]:
        """Where the parts lie on the page, by their id."""
        script = """return Object.fromEntries([...document.querySelectorAll(arguments[0])].map((node) => {
          const box = node.getBoundingClientRect();
          return [node.id, {left: box.left, top: box.top + scrollY, right: box.right, bottom: box.bottom + scrollY}];
        }))"""
        boxes: dict[str, dict[str, float]] = self.run(script, selector)
        return boxes

    def trace_events(self) -> list[dict[str, Any]]:
        """Of a browser that was opened with ``has_trace``: what its threads did on its first page."""
        entries = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [entry["params"] for entry in entries if entry["method"] == "Tracing.dataCollected"]


@contextmanager
def opened_browser(*, has_trace: bool = False) -> Iterator[Browser]:
    """Skips the test, saying so, where there is none."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver_path = shutil.which("chromedriver")
    if chromium is None or driver_path is None:
        pytest.skip("needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    options = Options()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1440,900",
    ):
        options.add_argument(argument)
    logs = {"browser": "ALL"} | ({"performance": "ALL"} if has_trace else {})
    options.set_capability("goog:loggingPrefs", logs)
    if has_trace:
        wanted = {
            "enableNetwork": False,
            "enablePage": False,
            "traceCategories": "toplevel,devtools.timeline,blink.user_timing",
        }
        options.add_experimental_option("perfLoggingPrefs", wanted)
    driver = Chrome(options=options, service=Service(driver_path))
    driver.set_script_timeout(PATIENCE)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
