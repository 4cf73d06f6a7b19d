package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

// ApplyFile sets what the YAML document in raw says; name stands for it in faults. It returns Faults:
// unknown and repeated keys, values of the wrong shape, values that cannot be parsed. With a prefix only
// the part of the document below it is read.
func (b *Binding) ApplyFile(name string, raw []byte) error {
	if faults := b.applyFile(name, raw); len(faults) > 0 {
		return faults
	}
	return nil
}

func (b *Binding) applyFile(name string, raw []byte) Faults {
	r := &fileReader{binding: b, name: filepath.Base(name)}
	if len(raw) > maxFile {
		return Faults{{Message: name + " is larger than 1 MiB"}}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(raw))
	var document yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return Faults{{Message: fmt.Sprintf("%s is not YAML: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))}}
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Faults{{Message: name + " holds more than one document"}}
	}
	if len(document.Content) == 1 {
		r.mapping(document.Content[0], "")
	}
	return r.faults
}

type fileReader struct {
	binding *Binding
	name    string
	faults  Faults
}

func (r *fileReader) at(node *yaml.Node) string { return fmt.Sprintf("%s:%d", r.name, node.Line) }

func (r *fileReader) mapping(node *yaml.Node, prefix string) {
	node = resolve(node)
	if isNull(node) {
		return
	}
	if node.Kind != yaml.MappingNode {
		r.faults = r.faults.with(Fault{Key: prefix, Origin: r.at(node), Message: "wants keys with values below it"})
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		keyNode, value := node.Content[i], node.Content[i+1]
		key := join(prefix, keyNode.Value)
		if line, twice := seen[keyNode.Value]; twice {
			r.faults = r.faults.with(Fault{Key: key, Origin: r.at(keyNode), Message: fmt.Sprintf("is given twice, first in line %d", line)})
			continue
		}
		seen[keyNode.Value] = keyNode.Line
		r.entry(keyNode, value, key)
	}
}

func (r *fileReader) entry(keyNode, value *yaml.Node, key string) {
	b := r.binding
	if f, ok := b.byKey[key]; ok {
		f.origin = r.at(value)
		if err := setNode(f, resolve(value)); err != nil {
			r.faults = r.faults.with(f.fault(err.Error()))
		}
		return
	}
	if b.isGroup(key) {
		r.mapping(value, key)
		return
	}
	if b.prefix != "" && key != b.prefix && !strings.HasPrefix(key, b.prefix+".") {
		return // belongs to somebody else's binding of the same file
	}
	message := "unknown key " + key
	if suggestion := b.suggestKey(key); suggestion != "" {
		message += "; did you mean " + suggestion + "?"
	}
	r.faults = r.faults.with(Fault{Origin: r.at(keyNode), Message: message})
}

// isGroup reports whether settings lie below key.
func (b *Binding) isGroup(key string) bool {
	for _, f := range b.fields {
		if strings.HasPrefix(f.Key, key+".") {
			return true
		}
	}
	return false
}

func setNode(f *Field, node *yaml.Node) error {
	if isNull(node) {
		return errors.New("has no value; leave the key out to keep the default")
	}
	switch value := f.value.Addr().Interface().(type) {
	case *[]string:
		return setList(node, value)
	case *map[string]string:
		return setMap(node, value)
	}
	if node.Kind != yaml.ScalarNode {
		return fmt.Errorf("wants a single value (%s)", f.Type)
	}
	return parse(node.Value, f.value)
}

func setList(node *yaml.Node, target *[]string) error {
	if node.Kind != yaml.SequenceNode {
		return errors.New("wants a list: [a, b]")
	}
	list := make([]string, 0, len(node.Content))
	for _, entry := range node.Content {
		if entry = resolve(entry); entry.Kind != yaml.ScalarNode {
			return fmt.Errorf("entry %d of the list is not a single value", len(list)+1)
		}
		list = append(list, entry.Value)
	}
	*target = list
	return nil
}

func setMap(node *yaml.Node, target *map[string]string) error {
	if node.Kind != yaml.MappingNode {
		return errors.New("wants a map: {key: value}")
	}
	m := make(map[string]string, len(node.Content)/2)
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i].Value, resolve(node.Content[i+1])
		if _, twice := m[key]; twice {
			return fmt.Errorf("key %q is given twice", key)
		}
		if value.Kind != yaml.ScalarNode {
			return fmt.Errorf("the value of %q is not a single value", key)
		}
		m[key] = value.Value
	}
	*target = m
	return nil
}

// resolve follows an alias. YAML forbids an alias of an alias, so that one step is enough.
func resolve(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode && node.Alias != nil {
		return node.Alias
	}
	return node
}

func isNull(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.Tag == "!!null" }
