package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// maxFile is the largest configuration file, in bytes.
const maxFile = 1 << 20

// set decodes a YAML node into the field. A layer replaces the value of the layer below.
func (f *Field) set(node *yaml.Node, origin string) Problems {
	f.origin = origin
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.ShortTag() == "!!null" {
		return Problems{f.problem("has no value; leave the key out to keep the default")}
	}
	if b, err := strconv.ParseBool(strings.ToLower(node.Value)); err == nil && f.Type == "bool" { // 1, t and TRUE, too
		f.value.SetBool(b)
		return nil
	}
	value := reflect.New(f.value.Type())
	err := node.Decode(value.Interface())
	if err == nil {
		f.value.Set(value.Elem())
		return nil
	}
	if _, isMismatch := errors.AsType[*yaml.TypeError](err); !isMismatch {
		return Problems{f.problem(err.Error())} // of the type's own UnmarshalText
	}
	given := ""
	if node.Kind == yaml.ScalarNode {
		given = strconv.Quote(node.Value) + " "
	}
	return Problems{f.problem(given + "is not " + f.syntax())}
}

func (f *Field) syntax() string {
	switch f.Type {
	case "bool":
		return "true or false"
	case "int":
		return "a whole number (" + f.value.Kind().String() + ")"
	case "number":
		return "a number such as 0.5"
	case "duration":
		return "a duration with a unit, such as 10s or 1m30s"
	case "list":
		return "a list such as [a, b]"
	case "map":
		return "a map such as {key: value}, with each key once"
	default:
		return "a single value"
	}
}

// setText sets the field to a value of the environment or of a flag, where a list is a,b and a map
// k=v,k=v. It drops empty entries and the space around entries.
func (f *Field) setText(text, origin string) Problems {
	if f.Type != "list" && f.Type != "map" {
		if f.Type != "string" {
			text = strings.TrimSpace(text)
		}
		node := &yaml.Node{Kind: yaml.ScalarNode, Value: text}
		if f.Type != "int" && f.Type != "number" && f.Type != "bool" {
			node.Tag = "!!str" // so that ~ is not null
		}
		return f.set(node, origin)
	}
	node := &yaml.Node{Kind: yaml.SequenceNode}
	if f.Type == "map" {
		node.Kind = yaml.MappingNode
	}
	for entry := range strings.SplitSeq(text, ",") {
		key, value, isPair := strings.Cut(strings.TrimSpace(entry), "=")
		switch {
		case key == "" && !isPair:
		case f.Type == "list":
			node.Content = append(node.Content, scalar(strings.TrimSpace(entry)))
		case !isPair || strings.TrimSpace(key) == "":
			f.origin = origin
			return Problems{f.problem(fmt.Sprintf("%q is not key=value", entry))}
		default:
			node.Content = append(node.Content, scalar(strings.TrimSpace(key)), scalar(strings.TrimSpace(value)))
		}
	}
	return f.set(node, origin)
}

func scalar(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
}

// ApplyFile applies the YAML document in raw. name identifies the document in errors. With a prefix it
// reads only the part of the document below the prefix. The error is Problems: unknown and repeated
// keys, and values that cannot be decoded.
func (b *Binding) ApplyFile(name string, raw []byte) error {
	return b.applyFile(name, raw).err()
}

func (b *Binding) applyFile(name string, raw []byte) Problems {
	if len(raw) > maxFile {
		return Problems{{Message: name + " is larger than 1 MiB"}}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(raw))
	var document yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return Problems{{Message: fmt.Sprintf("%s is not YAML: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))}}
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Problems{{Message: name + " has more than one document"}}
	}
	return b.applyMapping(filepath.Base(name), document.Content[0], "")
}

func (b *Binding) applyMapping(file string, node *yaml.Node, prefix string) Problems {
	at := func(n *yaml.Node) string { return fmt.Sprintf("%s:%d", file, n.Line) }
	origin := at(node)
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.ShortTag() == "!!null" {
		return nil
	}
	if node.Kind != yaml.MappingNode {
		return Problems{{Key: prefix, Origin: origin, Message: "must be a group of keys with values"}}
	}
	var problems Problems
	lines := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		keyNode, value := node.Content[i], node.Content[i+1]
		key := join(prefix, keyNode.Value)
		line, repeated := lines[key]
		lines[key] = keyNode.Line
		switch field := b.byKey[key]; {
		case repeated:
			message := fmt.Sprintf("the key is already in line %d", line)
			problems = append(problems, Problem{Key: key, Origin: at(keyNode), Message: message})
		case field != nil:
			problems = append(problems, field.set(value, at(value))...)
		case b.isGroup(key):
			problems = append(problems, b.applyMapping(file, value, key)...)
		case b.prefix == "" || key == b.prefix || strings.HasPrefix(key, b.prefix+"."):
			message := "unknown key " + key + didYouMean(b.suggestKey(key))
			problems = append(problems, Problem{Origin: at(keyNode), Message: message})
		}
	}
	return problems
}

// isGroup reports whether there are settings below key.
func (b *Binding) isGroup(key string) bool {
	for _, f := range b.fields {
		if strings.HasPrefix(f.Key, key+".") {
			return true
		}
	}
	return false
}

// kubernetesVariable matches the variables that Kubernetes puts into every pod for a Service named
// lockstep-….
var kubernetesVariable = regexp.MustCompile(
	`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// applyEnviron applies NAME=value pairs. An empty variable counts as unset. It warns of variables that
// are probably meant for a setting of this struct, but are none: services share an environment.
func (b *Binding) applyEnviron(environ []string) (warnings []string, problems Problems) {
	byEnv := make(map[string]*Field, len(b.fields))
	names := make([]string, 0, len(b.fields))
	for _, f := range b.fields {
		byEnv[f.Env] = f
		names = append(names, f.Env)
	}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		switch field := byEnv[name]; {
		case !strings.HasPrefix(name, envPrefix) || value == "":
		case field != nil:
			problems = append(problems, field.setText(value, name)...)
		case name != envPrefix+"CONFIG" && !kubernetesVariable.MatchString(name):
			suggestion := nearest(name, names)
			if suggestion != "" || b.inGroup(name) {
				warnings = append(warnings, "no setting is named "+name+didYouMean(suggestion))
			}
		}
	}
	return warnings, problems
}

// inGroup reports whether a variable begins like those of a group of settings.
func (b *Binding) inGroup(variable string) bool {
	for _, f := range b.fields {
		group := envPrefix + strings.ToUpper(strings.ReplaceAll(f.group, ".", "_")) + "_"
		if f.group != "" && strings.HasPrefix(variable, group) {
			return true
		}
	}
	return false
}

// flagValue keeps the values of a flag until the layers below are applied, so that Load reports the
// problems of all layers together.
type flagValue struct{ field *Field }

func (v flagValue) String() string { return v.field.Default }
func (v flagValue) Type() string   { return v.field.Type }
func (v flagValue) Set(text string) error {
	v.field.given = append(v.field.given, text)
	return nil
}

// pflag makes the flag of the field. A flag of a list or of a map can be repeated.
func (f *Field) pflag() *pflag.Flag {
	usage := f.Help
	if len(f.OneOf) > 0 {
		usage += " (" + strings.Join(f.OneOf, ", ") + ")"
	}
	flag := &pflag.Flag{
		Name: f.Flag, Usage: usage + " [" + f.Env + ", " + f.Key + "]", Value: flagValue{f}, DefValue: f.Default,
	}
	if f.Type == "bool" {
		flag.NoOptDefVal = "true"
	}
	return flag
}

func (b *Binding) applyFlags() Problems {
	var problems Problems
	for _, f := range b.fields {
		if len(f.given) == 0 {
			continue
		}
		text := f.given[len(f.given)-1]
		if f.Type == "list" || f.Type == "map" {
			text = strings.Join(f.given, ",")
		}
		problems = append(problems, f.setText(text, "--"+f.Flag)...)
	}
	return problems
}
