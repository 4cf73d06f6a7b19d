package devfile

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// maxDepth of nested lists and objects. The schema needs seven, attributes are free.
const maxDepth = 32

// parse reads exactly one YAML document, and checks of all of it what can be done harm with.
func parse(data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, fault.New(errcode.InvalidArgument, "the devfile is empty")
	case err != nil:
		return nil, fault.New(
			errcode.InvalidArgument,
			"the devfile is no YAML: %s",
			strings.TrimPrefix(err.Error(), "yaml: "),
		)
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fault.New(errcode.InvalidArgument, "the devfile is more than one YAML document; give one")
	}
	root := document.Content[0]
	return root, sound(root, 0)
}

// sound refuses what would make more of the devfile than is written there, or something other than
// text, lists and objects.
func sound(n *yaml.Node, depth int) error {
	if depth > maxDepth {
		return fault.New(errcode.InvalidArgument, "line %d of the devfile: is nested more than %d deep", n.Line, maxDepth)
	}
	switch n.Kind {
	case yaml.AliasNode:
		return fault.New(
			errcode.InvalidArgument,
			"line %d of the devfile: the alias *%.40s is not read; write what it stands for",
			n.Line,
			n.Value,
		)
	case yaml.MappingNode:
		if err := distinct(n); err != nil {
			return err
		}
	default:
	}
	switch n.ShortTag() {
	case "!!map", "!!seq", "!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp":
	default:
		return fault.New(
			errcode.InvalidArgument,
			"line %d of the devfile: the tag %.40q is not read; remove it",
			n.Line,
			n.ShortTag(),
		)
	}
	for _, child := range n.Content {
		if err := sound(child, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// distinct refuses keys that are no plain text or are there twice.
func distinct(n *yaml.Node) error {
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge":
			return fault.New(errcode.InvalidArgument, "line %d of the devfile: a key must be a plain word", key.Line)
		case seen[key.Value]:
			return fault.New(errcode.InvalidArgument, "line %d of the devfile: %.40q is there twice", key.Line, key.Value)
		}
		seen[key.Value] = true
	}
	return nil
}
