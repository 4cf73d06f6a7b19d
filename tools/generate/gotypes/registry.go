package gotypes

import (
	"bytes"
	"fmt"
	"strings"
	"text/template"

	"lockstep.internal/tools/generate/catalog"
)

const registrySource = header + `// Names of the event types.
const (
{{- range .}}
{{comment .}}	Type{{.Title}} = {{printf "%q" .Type}}
{{- end}}
)

// Types returns a copy of the list of event types, sorted by name.
func Types() []Type {
	return []Type{
{{- range .}}
		{
			Name: Type{{.Title}}, Title: {{printf "%q" .Title}}, Stream: {{printf "%q" .Stream.Name}},
			Subjects: {{printf "%#v" .Subjects}},
			Description: {{printf "%q" .Description}},
		},
{{- end}}
	}
}
`

// Registry returns the source of the table of event types.
func (m Model) Registry() ([]byte, error) {
	functions := template.FuncMap{"comment": typeComment}
	tmpl, err := template.New("registry").Funcs(functions).Parse(registrySource)
	if err != nil {
		return nil, fmt.Errorf("registry of event types: %w", err)
	}
	var out bytes.Buffer
	if err := tmpl.Execute(&out, m.catalog.Events); err != nil {
		return nil, fmt.Errorf("registry of event types: %w", err)
	}
	return formatted(out.Bytes())
}

func typeComment(e catalog.Event) string {
	return comment("\t", fmt.Sprintf("Type%s is an event with the data [%s], on stream %s at %s: %s",
		e.Title, e.Title, e.Stream.Name, strings.Join(e.Subjects, " and "), e.Description))
}
