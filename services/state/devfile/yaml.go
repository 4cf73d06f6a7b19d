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

// maxDepth limits nested lists and objects. The schema needs 7 levels; attributes may need more.
const maxDepth = 32

// parse reads exactly one YAML document and rejects unsafe content.
func parse(data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, fault.New(errcode.InvalidArgument, "the devfile is empty")
	case err != nil:
		reason := strings.TrimPrefix(err.Error(), "yaml: ")
		return nil, fault.New(errcode.InvalidArgument, "the devfile is not valid YAML: %s", reason)
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fault.New(errcode.InvalidArgument, "the devfile is more than one YAML document; give one")
	}
	root := document.Content[0]
	return root, checkSafe(root, 0)
}

// checkSafe rejects deep nesting, aliases, which can expand exponentially, and tags other than those of plain YAML.
func checkSafe(n *yaml.Node, depth int) error {
	if depth > maxDepth {
		return fault.New(errcode.InvalidArgument,
			"line %d of the devfile: is nested more than %d levels deep", n.Line, maxDepth)
	}
	switch n.Kind {
	case yaml.AliasNode:
		return fault.New(errcode.InvalidArgument,
			"line %d of the devfile: the alias *%.40s is not supported; copy the content", n.Line, n.Value)
	case yaml.MappingNode:
		if err := checkKeys(n); err != nil {
			return err
		}
	default:
	}
	switch n.ShortTag() {
	case "!!map", "!!seq", "!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp":
	default:
		return fault.New(errcode.InvalidArgument,
			"line %d of the devfile: the tag %.40q is not supported; remove it", n.Line, n.ShortTag())
	}
	for _, child := range n.Content {
		if err := checkSafe(child, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// checkKeys rejects duplicate keys and keys that are not plain strings.
func checkKeys(n *yaml.Node) error {
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge":
			return fault.New(errcode.InvalidArgument, "line %d of the devfile: a key must be a plain string", key.Line)
		case seen[key.Value]:
			return fault.New(errcode.InvalidArgument, "line %d of the devfile: %.40q is a duplicate key", key.Line, key.Value)
		}
		seen[key.Value] = true
	}
	return nil
}
