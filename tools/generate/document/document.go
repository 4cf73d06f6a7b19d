// Package document reads JSON Schemas as documents: files that refer to each other.
//
// A [Set] is what one folder holds; a [Node] is one schema in it, found by name or by following
// $ref. Nothing here knows what keywords mean, and nothing panics on a document that is no schema:
// what is not there is empty.
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

// maxHops ends a circle of references.
const maxHops = 32

// Set is the schemas of one folder by file name.
type Set struct {
	raw   map[string][]byte
	roots map[string]any
}

// Read reads every schema file of a folder. All files that are no JSON are named in the error.
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

// New makes a set of files that are already read.
func New(files map[string][]byte) (Set, error) {
	s := Set{raw: files, roots: make(map[string]any, len(files))}
	var faults []error
	for _, name := range s.Names() {
		root, err := decode(files[name])
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: is no JSON: %w", name, err))
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
		return nil, err //nolint:wrapcheck // New names the file.
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the document")
	}
	return value, nil
}

// Names of the files, sorted.
func (s Set) Names() []string {
	names := make([]string, 0, len(s.raw))
	for name := range s.raw {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Raw is a file as it is written.
func (s Set) Raw(name string) []byte { return s.raw[name] }

// Root is the schema that a file is; an empty node when there is no such file.
func (s Set) Root(name string) Node { return Node{set: &s, file: name, Value: s.roots[name]} }

// Node is one schema, or any other value of a document.
type Node struct {
	set   *Set
	file  string
	Value any
}

// File that the node is in.
func (n Node) File() string { return n.file }

// Object is the node's members, nil when it is no object.
func (n Node) Object() map[string]any {
	object, _ := n.Value.(map[string]any)
	return object
}

// Has tells whether a member is there.
func (n Node) Has(key string) bool {
	_, ok := n.Object()[key]
	return ok
}

// At is the member of an object, an empty node when it is not there.
func (n Node) At(key string) Node { return Node{set: n.set, file: n.file, Value: n.Object()[key]} }

// Keys of an object, sorted.
func (n Node) Keys() []string {
	keys := make([]string, 0, len(n.Object()))
	for key := range n.Object() {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// Text is a string, "" when the node is none.
func (n Node) Text() string {
	text, _ := n.Value.(string)
	return text
}

// Texts are the strings of an array; others are left out.
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

// Resolve follows $ref until there is none. What stands beside a $ref says nothing about values
// here: the catalog allows only a description there.
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
	return Node{}, fmt.Errorf("%s: references go in a circle", n.file)
}

// follow understands #/a/b, file.schema.json#/a/b and the same with any base before the file name.
func (n Node) follow(ref string) (Node, error) {
	address, pointer, _ := strings.Cut(ref, "#")
	file := n.file
	if address != "" {
		file = path.Base(address)
	}
	if n.set == nil || n.set.raw[file] == nil {
		return Node{}, fmt.Errorf("%s: $ref %q: there is no file %s", n.file, ref, file)
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
