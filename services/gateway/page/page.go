package page

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
)

// Page is what a page shows. All but the title is optional.
type Page struct {
	Title string
	Text  string
	// State is that of a workspace that does not run. The page follows it, and opens the workspace when it runs.
	State string
	// Action is the path that the button sends the fields to. Without it, there is no button.
	Action, Button string
	Fields         map[string]string
	// Login is who has signed in; SignIn is where the person can sign out.
	Login, SignIn string
}

//go:embed page.html page.css state.js
var files embed.FS

var (
	style  = read("page.css")
	script = read("state.js")
	// Icon of a tab: two steps. A URL of a file would be one of the workspace's program.
	icon = "data:image/svg+xml," + url.PathEscape(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">`+
		`<rect width="16" height="16" rx="4" fill="#2457d6"/>`+
		`<path d="M4 5l3 3-3 3M8.5 5l3 3-3 3" fill="none" stroke="#fff" stroke-width="1.6"/></svg>`)

	pages = template.Must(template.New("page.html").Funcs(template.FuncMap{
		"style":  func() template.CSS { return template.CSS(style) }, //nolint:gosec // our own file
		"script": func() template.JS { return template.JS(script) },  //nolint:gosec // our own file
		"icon":   func() template.URL { return template.URL(icon) },  //nolint:gosec // our own text
	}).ParseFS(files, "page.html"))

	policy = fmt.Sprintf("default-src 'none'; base-uri 'none'; frame-ancestors 'none'; connect-src 'self'; "+
		"img-src data:; style-src '%s'; script-src '%s'; form-action 'self'", hash(style), hash(script))
)

func read(name string) string {
	content, err := files.ReadFile(name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(content)
}

// hash is the source of an element with a text, in a policy.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// Policy is the Content-Security-Policy of a page. Its form may lead to one more origin, if it is not empty.
func Policy(origin string) string { return strings.TrimSpace(policy + " " + origin) }

// Write sends a page. Set its policy before.
func Write(w http.ResponseWriter, status int, p Page) error {
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	return pages.Execute(w, p) //nolint:wrapcheck // the browser has left
}
