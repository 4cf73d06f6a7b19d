package signin

import (
	"html/template"
	"net/http"

	"lockstep.internal/libs/logkey"
)

// view is what a page shows: a text, and a form with one button.
type view struct {
	Title  string
	Text   string
	Action string
	Button string
	Fields map[string]string
}

var page = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{.Title}}</title>
<h1>{{.Title}}</h1>
{{with .Text}}<p>{{.}}</p>{{end}}
{{if .Action}}<form method="post" action="{{.Action}}">
{{range $name, $value := .Fields}}<input type="hidden" name="{{$name}}" value="{{$value}}">
{{end}}<button>{{.Button}}</button>
</form>{{end}}
</html>
`))

func (s *SignIn) page(w http.ResponseWriter, r *http.Request, status int, v view) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	if err := page.Execute(w, v); err != nil {
		s.logger.DebugContext(r.Context(), "send a page", logkey.Error(err))
	}
}
