package page_test

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/gateway/page"
)

func write(t *testing.T, p page.Page) string {
	t.Helper()
	w := httptest.NewRecorder()
	require.NoError(t, page.Write(w, http.StatusTeapot, p))
	require.Equal(t, http.StatusTeapot, w.Code)
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	return w.Body.String()
}

// TestPolicyPermitsWhatIsOnThePage compares the hashes of the policy with the elements that a browser gets.
func TestPolicyPermitsWhatIsOnThePage(t *testing.T) {
	t.Parallel()
	text := write(t, page.Page{Title: "hello", State: "stopped", Action: "/start", Button: "Start"})
	elements := regexp.MustCompile(`(?s)<(style|script)>(.*?)</`).FindAllStringSubmatch(text, -1)
	require.Len(t, elements, 2)
	for _, element := range elements {
		hash := sha256.Sum256([]byte(element[2]))
		require.Contains(t, page.Policy(""),
			element[1]+"-src 'sha256-"+base64.StdEncoding.EncodeToString(hash[:])+"'")
	}
	require.Regexp(t, `<link rel="icon" href="data:image/svg`, text, "not a request to the program of the workspace")
	require.Regexp(t, `form-action 'self'$`, page.Policy(""))
	require.Regexp(t, `form-action 'self' https://hello.test$`, page.Policy("https://hello.test"))
}

func TestPageShowsWhatItHas(t *testing.T) {
	t.Parallel()
	require.NotRegexp(t, `<script|<form|<footer`, write(t, page.Page{Title: "hello"}))
	text := write(t, page.Page{
		Title: "<b>", Text: "<i>", Action: "/a", Button: "Go", Fields: map[string]string{"code": `"x`},
		Login: "ada", SignIn: "https://sign-in.test/",
	})
	for _, want := range []string{
		"<h1>&lt;b&gt;</h1>", "<p>&lt;i&gt;</p>", `action="/a"`, "<button>Go</button>",
		`name="code" value="&#34;x"`, `Signed in as ada. <a href="https://sign-in.test/">`,
	} {
		require.Contains(t, text, want)
	}
}
