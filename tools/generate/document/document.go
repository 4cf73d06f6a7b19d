// Package document reads JSON Schemas as documents with references to each other.
//
// A [Set] holds the schemas of one folder, a [Node] is one schema or value in it. The package does
// not know the meaning of keywords and never panics: an absent value is an empty node.
package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Suffix of the name of every schema file.
const Suffix = ".schema.json"

// maxHops detects a cycle of references.
const maxHops = 32

// Set is the schemas of one folder by file name.
type Set struct {
	raw   map[string][]byte
	roots map[string]any
}

// Read reads every schema file of a folder. The error names all invalid files.
func Read(dir fs.FS) (Set, error) {
	names, err := fs.Glob(dir, "*"+Suffix)
	if err != nil {
		return Set{}, fmt.Errorf("list schemas: %w", err)
	}
	files := make(map[string][]byte, len(names))
	for _, name := range names {
		if files[name], err = fs.ReadFile(dir, name); err != nil {
			return Set{}, fmt.Errorf("read schema: %w", err)
		}
	}
	return New(files)
}

// New returns the set of files that were read before.
func New(files map[string][]byte) (Set, error) {
	s := Set{raw: files, roots: make(map[string]any, len(files))}
	var faults []error
	for _, name := range s.Names() {
		root, err := decode(files[name])
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: is not JSON: %w", name, err))
		}
		s.roots[name] = root
	}
	return s, errors.Join(faults...)
}

func decode(raw []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err //nolint:wrapcheck // Wrapped by New.
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("a second value follows the document")
	}
	return value, nil
}

// Names returns the names of the files, sorted.
func (s Set) Names() []string {
	names := make([]string, 0, len(s.raw))
	for name := range s.raw {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Raw returns the content of a file.
func (s Set) Raw(name string) []byte { return s.raw[name] }

// Root returns the schema of a file, or an empty node.
func (s Set) Root(name string) Node { return Node{set: &s, file: name, Value: s.roots[name]} }

// Node is a schema or another value of a document.
type Node struct {
	set   *Set
	file  string
	Value any
}

// File returns the file of the node.
func (n Node) File() string { return n.file }

// Object returns the members of an object, or nil.
func (n Node) Object() map[string]any {
	object, _ := n.Value.(map[string]any)
	return object
}

// Has reports whether a member exists.
func (n Node) Has(key string) bool {
	_, ok := n.Object()[key]
	return ok
}

// At returns a member of an object, or an empty node.
func (n Node) At(key string) Node { return Node{set: n.set, file: n.file, Value: n.Object()[key]} }

// Keys returns the names of the members, sorted.
func (n Node) Keys() []string {
	keys := make([]string, 0, len(n.Object()))
	for key := range n.Object() {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// Text returns a string, or "" for another value.
func (n Node) Text() string {
	text, _ := n.Value.(string)
	return text
}

// Texts returns the strings of an array.
func (n Node) Texts() []string {
	array, _ := n.Value.([]any)
	texts := make([]string, 0, len(array))
	for _, value := range array {
		if text, ok := value.(string); ok {
			texts = append(texts, text)
		}
	}
	return texts
}

// Resolve follows $ref to the last schema. It ignores keywords beside $ref; the catalog allows only
// a description there.
func (n Node) Resolve() (Node, error) {
	for range maxHops {
		if !n.Has("$ref") {
			return n, nil
		}
		next, err := n.follow(n.At("$ref").Text())
		if err != nil {
			return Node{}, err
		}
		n = next
	}
	return Node{}, fmt.Errorf("%s: references form a cycle", n.file)
}

// follow resolves #/a/b and file.schema.json#/a/b, with any base URL.
func (n Node) follow(ref string) (Node, error) {
	address, pointer, _ := strings.Cut(ref, "#")
	file := n.file
	if address != "" {
		file = path.Base(address)
	}
	if n.set == nil || n.set.raw[file] == nil {
		return Node{}, fmt.Errorf("%s: $ref %q: file %s does not exist", n.file, ref, file)
	}
	at := n.set.Root(file)
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		if pointer == "" {
			break
		}
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		if !at.Has(token) {
			return Node{}, fmt.Errorf("%s: $ref %q: %s has no %s", n.file, ref, file, pointer)
		}
		at = at.At(token)
	}
	return at, nil
}
