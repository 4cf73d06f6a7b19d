package sink

import (
	"cmp"
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

// Template renders a [View] as text. It adds these functions to text/template: short (the first 7
// characters), lower, upper, title, join LIST SEP, default FALLBACK VALUE, truncate LENGTH TEXT,
// duration (1m4s), time (RFC 3339), json (any value as JSON), and code, which shows a value as code. Each value that a
// template writes is escaped for the destination's markup; text escapes a value earlier, for example before printf.
type Template struct {
	template *template.Template
}

const (
	// maxText is the maximum size of the rendered text, in bytes.
	maxText = 64 << 10
	// maxSteps is the maximum number of writes of a template. Every iteration of a loop writes at least once.
	maxSteps = 100_000
)

// prepare adds an empty text to every loop, so that each iteration is a write, and escapes every output.
func prepare(list *parse.ListNode) {
	if list == nil {
		return
	}
	for _, node := range list.Nodes {
		switch n := node.(type) {
		case *parse.ActionNode:
			if len(n.Pipe.Decl) == 0 {
				escape := []parse.Node{parse.NewIdentifier("text")}
				n.Pipe.Cmds = append(n.Pipe.Cmds, &parse.CommandNode{NodeType: parse.NodeCommand, Pos: n.Pos, Args: escape})
			}
		case *parse.IfNode:
			prepare(n.List)
			prepare(n.ElseList)
		case *parse.WithNode:
			prepare(n.List)
			prepare(n.ElseList)
		case *parse.RangeNode:
			prepare(n.List)
			prepare(n.ElseList)
			n.List.Nodes = append([]parse.Node{&parse.TextNode{NodeType: parse.NodeText, Pos: n.Pos}}, n.List.Nodes...)
		}
	}
}

// ParseTemplate parses a template. To find errors, it renders an empty view. Without a markup, values are written
// unchanged.
func ParseTemplate(text string, markup *Markup) (*Template, error) {
	if markup == nil {
		markup = plain()
	}
	t, err := template.New("template").Option("missingkey=zero").Funcs(template.FuncMap{
		"short":    func(s string) string { return Truncate(7, s) },
		"lower":    strings.ToLower,
		"upper":    strings.ToUpper,
		"title":    func(s string) string { return strings.ReplaceAll(s, "_", " ") },
		"join":     strings.Join,
		"default":  func(fallback, s string) string { return cmp.Or(s, fallback) },
		"truncate": Truncate,
		"duration": duration,
		"time":     func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"json":     marshal,
		"text":     markup.escape,
		"code":     markup.code,
	}).Parse(text)
	if err != nil {
		return nil, fmt.Errorf("parse the template: %w", err)
	}
	for _, part := range t.Templates() {
		if part.Tree != nil {
			prepare(part.Root)
		}
	}
	parsed := &Template{template: t}
	if _, err := parsed.Execute(View{}); err != nil {
		return nil, err
	}
	return parsed, nil
}

// Execute renders the text and trims white space.
func (t *Template) Execute(v View) (string, error) {
	var out strings.Builder
	if err := t.template.Execute(&limited{w: &out, bytes: maxText, writes: maxSteps}, v); err != nil {
		return "", fmt.Errorf("render the template: %w", err)
	}
	return strings.TrimSpace(out.String()), nil
}

// limited is a writer that returns an error after too many bytes or writes. The error aborts an endless template.
type limited struct {
	w             io.Writer
	bytes, writes int // that remain
}

func (l *limited) Write(p []byte) (int, error) {
	if l.bytes -= len(p); l.bytes < 0 {
		return 0, errors.New("the text is larger than 64 KiB")
	}
	if l.writes--; l.writes < 0 {
		return 0, errors.New("the template takes more than 100,000 steps")
	}
	return l.w.Write(p) //nolint:wrapcheck // strings.Builder never fails.
}

// Truncate returns at most length characters of s. A truncated text of 16 or more ends with an
// ellipsis.
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
		return "", fmt.Errorf("encode as JSON: %w", err)
	}
	return string(raw), nil
}
