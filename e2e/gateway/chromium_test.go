package gateway_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
)

// screenshotsVariable names a folder that keeps the screenshots.
const screenshotsVariable = "LOCKSTEP_SCREENSHOTS"

// Size of a page.
const viewWidth, viewHeight = 1000, 650

// evaluateTimeout is that of one attempt: the page may be replaced by another, and never answer.
const evaluateTimeout = 10 * time.Second

// chromium is a headless browser.
type chromium struct {
	t           testing.TB
	ctx         context.Context // chromedp keeps the browser in it
	screenshots string
}

// startChromium starts a browser that trusts the certificate of the gateway, and no other that the machine does not.
func startChromium(t testing.TB, s *fixture.System) *chromium {
	t.Helper()
	program, err := exec.LookPath("chromium")
	require.NoError(t, err, "this test needs Chromium: on Debian, apt-get install chromium")
	text, err := os.ReadFile(s.GatewayCAFile())
	require.NoError(t, err)
	block, _ := pem.Decode(text)
	require.NotNil(t, block)
	certificate, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	key := sha256.Sum256(certificate.RawSubjectPublicKeyInfo)
	// For root, chromedp adds --no-sandbox: Chromium refuses to start otherwise. The pages are those of the test. The
	// profile is a temporary folder that chromedp removes.
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program),
		chromedp.Flag("ignore-certificate-errors-spki-list", base64.StdEncoding.EncodeToString(key[:])),
		chromedp.Flag("host-resolver-rules", "MAP *.localhost 127.0.0.1"), // the gateway does not listen on ::1
		chromedp.Env("HOME="+t.TempDir(), "XDG_CONFIG_HOME=", "XDG_CACHE_HOME="),
		chromedp.WSURLReadTimeout(fixture.Timeout),
	)
	allocator, release := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(release)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(ctx, fixture.Timeout)
		defer stop()
		require.NoError(t, chromedp.Cancel(ctx), "Chromium ends, and its profile is removed")
		cancel()
	})
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate("about:blank")))
	screenshots := cmp.Or(os.Getenv(screenshotsVariable), t.TempDir())
	require.NoError(t, os.MkdirAll(screenshots, 0o750))
	return &chromium{t: t, ctx: ctx, screenshots: screenshots}
}

// tab is a tab of the browser of a person. Its console must have no errors.
type tab struct {
	t           testing.TB
	ctx         context.Context // chromedp keeps the tab in it
	screenshots string

	mu     sync.Mutex
	pages  map[string]bool // addresses that the tab has shown
	errors []consoleError
}

type consoleError struct {
	text string
	// failed is the address of what could not be loaded. A browser lists a page itself, too, if its status is 400 or
	// more.
	failed string
}

// person returns the first tab of a browser without cookies.
func (c *chromium) person() *tab {
	c.t.Helper()
	return newTab(c.t, c.ctx, c.screenshots, chromedp.WithNewBrowserContext())
}

// another returns another tab, with the same cookies.
func (t *tab) another() *tab {
	t.t.Helper()
	return newTab(t.t, t.ctx, t.screenshots)
}

func newTab(t testing.TB, parent context.Context, screenshots string, options ...chromedp.ContextOption) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(parent, options...)
	created := &tab{t: t, ctx: ctx, screenshots: screenshots, pages: map[string]bool{}}
	require.NoError(t, chromedp.Listen(ctx, created.listen))
	require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(viewWidth, viewHeight)))
	t.Cleanup(func() {
		if t.Failed() {
			created.keep()
		}
		cancel()
	})
	return created
}

func (t *tab) listen(event any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := event.(type) {
	case *page.EventFrameNavigated:
		t.pages[e.Frame.URL] = true
	case *log.EventEntryAdded:
		failed := ""
		if e.Entry.Source == log.EntrySourceNetwork {
			failed = e.Entry.URL
		}
		if e.Entry.Level == log.EntryLevelError {
			t.errors = append(t.errors, consoleError{string(e.Entry.Source) + ": " + e.Entry.Text, failed})
		}
	case *runtime.EventExceptionThrown:
		t.errors = append(t.errors, consoleError{text: e.ExceptionDetails.Text})
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeAssert {
			t.errors = append(t.errors, consoleError{text: "console: " + string(e.Type)})
		}
	}
}

// requireNoErrors checks the console. The provider has no icon.
func (t *tab) requireNoErrors() {
	t.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.errors {
		provided := strings.HasSuffix(e.failed, "/favicon.ico") && strings.HasPrefix(e.failed, "http://127.0.0.1:")
		require.True(t.t, t.pages[e.failed] || provided, "%s %s", e.text, e.failed)
	}
}

// open opens an address.
func (t *tab) open(address string) {
	t.t.Helper()
	t.do(chromedp.Navigate(address))
}

func (t *tab) do(action chromedp.Action[chromedp.Void]) {
	t.t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, fixture.Timeout)
	defer cancel()
	require.NoError(t.t, chromedp.Do(ctx, action))
}

// await waits until an expression is true, also on a page that the browser opens meanwhile.
func (t *tab) await(expression string) {
	t.t.Helper()
	is := func() bool { return t.is(expression) }
	require.Eventually(t.t, is, fixture.Timeout, fixture.PollInterval, "%s", expression)
}

// is evaluates an expression. It is false if there is another page meanwhile, which lacks an element of the expression.
func (t *tab) is(expression string) bool {
	ctx, cancel := context.WithTimeout(t.ctx, evaluateTimeout)
	defer cancel()
	is, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression))
	return err == nil && is
}

// awaitText waits until an element shows a text.
func (t *tab) awaitText(selector, text string) {
	t.t.Helper()
	t.await(`document.querySelector("` + selector + `").textContent.replaceAll("\u00a0", " ").includes("` + text + `")`)
}

func (t *tab) click(selector string) {
	t.t.Helper()
	t.do(chromedp.Click(chromedp.CSS(selector)))
}

func (t *tab) enter(selector, text string) {
	t.t.Helper()
	t.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// typeKeys presses keys, a carriage return is Enter. [chromedp.SendKeys] sends the text of each key as an event of its
// own, which a page sees even if it has handled the key.
func (t *tab) typeKeys(text string) {
	t.t.Helper()
	for _, r := range text {
		key := input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: string(r), Text: string(r)}
		if r == '\r' {
			key.Key, key.Code, key.WindowsVirtualKeyCode = "Enter", "Enter", '\r'
		}
		t.do(dispatch(key))
		key.Type, key.Text = input.DispatchKeyEventTypeKeyUp, ""
		t.do(dispatch(key))
	}
}

func dispatch(key input.DispatchKeyEventParams) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, input.DispatchKeyEvent, key)
		return err
	})
}

// screenshot keeps what the tab shows.
func (t *tab) screenshot(name string) {
	t.t.Helper()
	image, err := chromedp.Run(t.ctx, chromedp.CaptureScreenshot())
	require.NoError(t.t, err)
	require.NoError(t.t, os.WriteFile(filepath.Join(t.screenshots, name+".png"), image, 0o600))
}

// keep keeps what the tab of a failed test shows.
func (t *tab) keep() {
	ctx, cancel := context.WithTimeout(t.ctx, fixture.Timeout)
	defer cancel()
	image, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		t.t.Logf("no screenshot: %v", err)
		return
	}
	file, err := os.CreateTemp("", "lockstep-e2e-*.png")
	if err != nil {
		t.t.Logf("no screenshot: %v", err)
		return
	}
	_, err = file.Write(image)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.t.Logf("a tab is shown in %s (%v); errors of its console: %v", file.Name(), err, t.errors)
	_ = file.Close()
}
