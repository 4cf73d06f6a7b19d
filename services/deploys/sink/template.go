package sink

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/template"
	"text/template/parse"
	"time"
	"unicode/utf8"
)

// Template makes a text of a [View]. In it are, beside what text/template has: short (the first 7 characters), lower, upper, title, join LIST SEP,
// default FALLBACK VALUE, truncate LENGTH TEXT, duration (1m4s), time (RFC 3339), json (any value as JSON), and text, which makes foreign text harmless
// to the destination: no markup of it works.
type Template struct {
	template *template.Template
}

const (
	// maxText bounds what a template makes, in bytes.
	maxText = 64 << 10
	// maxSteps bounds how often it writes something, be it nothing: every turn of a loop does.
	maxSteps = 100_000
)

// counted gives every loop something to write: a loop over a number may be long, and need not write anything by itself.
func counted(list *parse.ListNode) {
	if list == nil {
		return
	}
	for _, node := range list.Nodes {
		switch n := node.(type) {
		case *parse.IfNode:
			counted(n.List)
			counted(n.ElseList)
		case *parse.WithNode:
			counted(n.List)
			counted(n.ElseList)
		case *parse.RangeNode:
			counted(n.List)
			counted(n.ElseList)
			n.List.Nodes = append([]parse.Node{&parse.TextNode{NodeType: parse.NodeText, Pos: n.Pos}}, n.List.Nodes...)
		}
	}
}

// ParseTemplate reads a template and tries it on an empty view. escape is what text does; nil leaves text as it is.
func ParseTemplate(text string, escape func(string) string) (*Template, error) {
	if escape == nil {
		escape = func(s string) string { return s }
	}
	t, err := template.New("template").Option("missingkey=zero").Funcs(template.FuncMap{
		"short":    func(s string) string { return Truncate(7, s) },
		"lower":    strings.ToLower,
		"upper":    strings.ToUpper,
		"title":    func(s string) string { return strings.ReplaceAll(s, "_", " ") },
		"join":     strings.Join,
		"default":  func(fallback, s string) string { return firstOf(s, fallback) },
		"truncate": Truncate,
		"duration": duration,
		"time":     func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"json":     marshal,
		"text":     escape,
	}).Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the template cannot be read: %w", err)
	}
	for _, part := range t.Templates() {
		if part.Tree != nil {
			counted(part.Root)
		}
	}
	made := &Template{template: t}
	if _, err := made.Execute(View{}); err != nil {
		return nil, err
	}
	return made, nil
}

// Execute makes the text, without blanks around it.
func (t *Template) Execute(v View) (string, error) {
	var out strings.Builder
	if err := t.template.Execute(&limited{w: &out, left: maxText, steps: maxSteps}, v); err != nil {
		return "", fmt.Errorf("the template cannot be used: %w", err)
	}
	return strings.TrimSpace(out.String()), nil
}

// limited fails once too much was written, which ends a template that never would.
type limited struct {
	w           io.Writer
	left, steps int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, errors.New("its text is larger than 64 KiB")
	}
	if l.steps--; l.steps < 0 {
		return 0, errors.New("it takes more than 100,000 steps")
	}
	return l.w.Write(p) //nolint:wrapcheck // a builder's, which never fails
}

// Truncate is at most so many characters of s; where something was left out, the last is an ellipsis unless there is room for few only.
func Truncate(length int, s string) string {
	if utf8.RuneCountInString(s) <= length {
		return s
	}
	runes := []rune(s)
	if length < 16 {
		return string(runes[:max(length, 0)])
	}
	return string(runes[:length-1]) + "…"
}

func duration(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func marshal(v any) (string, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("as JSON: %w", err)
	}
	return string(raw), nil
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
