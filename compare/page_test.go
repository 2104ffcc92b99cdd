package compare

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// browser returns a page in headless Chromium, or skips the test.
func browser(t *testing.T) context.Context {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("no Chromium is installed: the page is not looked at")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WSURLReadTimeout(time.Minute))
	allocator, cancel := chromedp.NewExecAllocator(t.Context(), opts...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// The page is drawn in light and dark, wide and on a phone, without errors and without asking any network.
func TestPageInBrowser(t *testing.T) {
	ctx := browser(t)
	html, err := made().HTML()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, os.WriteFile(path, html, 0o600))
	url := "file://" + path

	var mu sync.Mutex
	var complaints, requests []string
	chromedp.ListenTarget(ctx, func(ev any) {
		mu.Lock()
		defer mu.Unlock()
		switch ev := ev.(type) {
		case *runtime.EventExceptionThrown:
			complaints = append(complaints, ev.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			complaints = append(complaints, string(ev.Type))
		case *network.EventRequestWillBeSent:
			if ev.Request.URL != url && !strings.HasPrefix(ev.Request.URL, "data:") {
				requests = append(requests, ev.Request.URL)
			}
		}
	})
	backgrounds := map[string]bool{}
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{1200, 390} {
			var drawn, background string
			var overflow float64
			var painted bool
			var shot []byte
			require.NoError(t, chromedp.Run(ctx,
				network.Enable(),
				emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}),
				chromedp.EmulateViewport(width, 900),
				chromedp.Navigate(url),
				chromedp.WaitReady("html[data-drawn]"),
				chromedp.Evaluate(`document.documentElement.dataset.drawn`, &drawn),
				chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor`, &background),
				chromedp.Evaluate(`document.documentElement.scrollWidth - document.documentElement.clientWidth`, &overflow),
				// Every canvas has something on it.
				chromedp.Evaluate(`[...document.querySelectorAll("canvas")].every((c) => c.getContext("2d").getImageData(0, 0, c.width, c.height).data.some((v) => v !== 0))`, &painted),
				chromedp.FullScreenshot(&shot, 100),
			), "%s, %d", theme, width)
			require.Equal(t, "5", drawn, "three distributions, and two plots of the fault")
			require.True(t, painted)
			require.LessOrEqual(t, overflow, 0.0, "%s, %d: the page is wider than the window", theme, width)
			backgrounds[background] = true
			if dir := os.Getenv("COMPARE_SCREENSHOTS"); dir != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d.png", theme, width)), shot, 0o600))
			}
		}
	}
	require.Len(t, backgrounds, 2, "light and dark differ")
	mu.Lock()
	defer mu.Unlock()
	require.Empty(t, complaints, "console")
	require.Empty(t, requests, "network")
}
