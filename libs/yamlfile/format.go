package yamlfile

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Format is what a kind of file may contain, and what its messages advise. All fields but Tags are required.
type Format struct {
	Bytes  int // of the file
	Depth  int // of nested mappings and lists
	Weight int // nodes plus bytes of text after aliases were replaced by what they stand for

	// Content says what to write into an empty file, OneDocument what to do with a second document.
	Content, OneDocument string
	// Tags are YAML tags that people may expect, with what to use instead.
	Tags map[string]string
}

// Read returns the mapping that a file consists of; nil after a problem. what describes the mapping, such as "a mapping
// of jobs".
func (f Format) Read(content []byte, what string, found *Problems) *Value {
	start := Position{Line: 1, Column: 1}
	if len(content) > f.Bytes {
		found.Addf(start, "the file has %d bytes: at most %d are allowed", len(content), f.Bytes)
		return nil
	}
	if !utf8.Valid(content) {
		found.Addf(invalidAt(content), "the file is not UTF-8")
		return nil
	}
	document := f.document(content, found)
	if document == nil {
		return nil
	}
	r := &reader{Problems: found, format: f, done: map[*yaml.Node]*Value{}, reading: map[*yaml.Node]bool{}}
	root := r.read(document, 1)
	if root == nil || len(found.Found) > 0 {
		return nil
	}
	if root.Weight > f.Weight {
		found.Addf(start, "the file is too large after its aliases were replaced: weight %d, at most %d is allowed",
			root.Weight, f.Weight)
		return nil
	}
	if root.Null() {
		found.Addf(start, "the file is empty: %s", f.Content)
		return nil
	}
	if root.Kind != Map {
		found.Addf(root.Position, "the file must be %s, not %s", what, root)
		return nil
	}
	return root
}

func invalidAt(content []byte) Position {
	at := 0
	for at < len(content) {
		r, size := utf8.DecodeRune(content[at:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		at += size
	}
	before := content[:at]
	line := bytes.Count(before, []byte("\n")) + 1
	return Position{Line: line, Column: utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1}
}

// document returns the root node of the only document; nil if there is none.
func (f Format) document(content []byte, found *Problems) *yaml.Node {
	start := Position{Line: 1, Column: 1}
	decode := yaml.NewDecoder(bytes.NewReader(content))
	var first, second yaml.Node
	if err := decode.Decode(&first); err != nil {
		if errors.Is(err, io.EOF) {
			found.Addf(start, "the file is empty: %s", f.Content)
		} else {
			found.Addf(syntaxError(err, content))
		}
		return nil
	}
	switch err := decode.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		found.Addf(syntaxError(err, content))
		return nil
	default:
		at := Position{Line: second.Line, Column: second.Column}
		found.Addf(at, "the file has a second document: %s", f.OneDocument)
		return nil
	}
	if len(first.Content) != 1 {
		found.Addf(start, "the file is empty: %s", f.Content)
		return nil
	}
	return first.Content[0]
}

var syntaxLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// syntaxError returns the arguments of Addf for an error of the YAML library, which names the line only. The column is
// that of the first character that is no space.
func syntaxError(err error, content []byte) (Position, string, string) {
	at := Position{Line: 1, Column: 1}
	message := err.Error()
	if m := syntaxLine.FindStringSubmatch(message); m != nil {
		message = m[2]
		if line, err := strconv.Atoi(m[1]); err == nil && line > 0 {
			at.Line = line
		}
	}
	lines := strings.Split(string(content), "\n")
	at.Line = min(at.Line, len(lines))
	line := lines[at.Line-1]
	at.Column = len(line) - len(strings.TrimLeft(line, " \t")) + 1
	return at, "not valid YAML: %s", message
}
