package config

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// width is that of the manual, in columns.
const width = 100

// Manual is the text of --help: the program, where configuration comes from, every setting by group.
func (b *Binding) Manual(program Program) string {
	var m strings.Builder
	m.WriteString(program.Name)
	if program.Version != "" {
		m.WriteString(" " + program.Version)
	}
	m.WriteString("\n\n")
	if program.About != "" {
		m.WriteString(wrap(program.About, "") + "\n")
	}
	fmt.Fprintf(&m, "Usage:\n  %s [--config file.yaml] [flags]\n\n", program.Name)
	m.WriteString(wrap("Every setting below can be given in a YAML file, in the environment and as a flag; a flag beats "+
		"the environment, which beats the file. A setting such as nats.url is written nats: {url: …} in the file. "+
		"An empty variable counts as unset. Outside the file a list is a,b and a map k=v,k=v.", "") + "\n")
	m.WriteString("  --config file     " + envPrefix + "CONFIG\n      the YAML file; none by default\n")
	m.WriteString("  --print-config\n      print the configuration as it is after all of these, secrets hidden, and end\n")
	for _, q := range program.Questions {
		m.WriteString("  --" + q.Flag + "\n" + wrap(q.Help, "      "))
	}
	m.WriteString("  --version\n  -h, --help\n")
	told := map[string]bool{}
	for _, s := range b.sections {
		if !told[s.key] {
			told[s.key] = true
			b.manualOf(&m, s)
		}
	}
	return m.String()
}

// manualOf tells of a group; the settings of inline structs belong to the group around them.
func (b *Binding) manualOf(m *strings.Builder, s section) {
	title := s.key
	if title == "" {
		title = "general"
	}
	if s.help != "" {
		title += ": " + s.help
	}
	for _, f := range b.fields {
		if f.group != s.key {
			continue
		}
		if title != "" {
			m.WriteString("\n" + title + "\n")
			title = ""
		}
		m.WriteString("\n  --" + f.Flag)
		if f.Type != "bool" {
			m.WriteString(" " + f.Type)
		}
		m.WriteString("\n      " + f.Env + "   " + f.Key + "\n")
		m.WriteString(wrap(f.describe(), "      "))
	}
}

func (f *Field) describe() string {
	sentences := []string{}
	if help := strings.TrimSpace(f.Help); help != "" {
		first, size := utf8.DecodeRuneInString(help)
		sentences = append(sentences, string(unicode.ToUpper(first))+strings.TrimSuffix(help[size:], ".")+".")
	}
	if len(f.OneOf) > 0 {
		sentences = append(sentences, "One of "+strings.Join(f.OneOf, ", ")+".")
	}
	if f.Default == "" {
		sentences = append(sentences, "Not set by default.")
	} else {
		sentences = append(sentences, "Defaults to "+f.Default+".")
	}
	return strings.Join(sentences, " ")
}

func wrap(text, indent string) string {
	var out strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		length := utf8.RuneCountInString(word)
		switch {
		case column == 0:
			out.WriteString(indent)
			column = len(indent)
		case column+1+length > width:
			out.WriteString("\n" + indent)
			column = len(indent)
		default:
			out.WriteByte(' ')
			column++
		}
		out.WriteString(word)
		column += length
	}
	out.WriteByte('\n')
	return out.String()
}

// Print is the answer to --print-config: the effective settings as a YAML file with their origins as
// comments, secrets hidden.
func (b *Binding) Print() (string, error) {
	root := &yaml.Node{Kind: yaml.MappingNode}
	for _, f := range b.fields {
		node, words := root, strings.Split(f.Key, ".")
		for _, word := range words[:len(words)-1] {
			node = child(node, word)
		}
		value, err := f.node()
		if err != nil {
			return "", fmt.Errorf("print %s: %w", f.Key, err)
		}
		key := &yaml.Node{Kind: yaml.ScalarNode, Value: words[len(words)-1]}
		if f.origin != "default" {
			key.HeadComment = "from " + f.origin
		}
		node.Content = append(node.Content, key, value)
	}
	if len(root.Content) == 0 {
		return "", nil
	}
	var out strings.Builder
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(root); err != nil {
		return "", fmt.Errorf("print the configuration: %w", err)
	}
	return out.String(), nil
}

// child returns the mapping below a key, making it where it is not there.
func child(node *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i+1]
		}
	}
	below := &yaml.Node{Kind: yaml.MappingNode}
	node.Content = append(node.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, below)
	return below
}

func (f *Field) node() (*yaml.Node, error) {
	var value any = format(f.value)
	switch f.Type {
	case "bool", "int", "number", "list", "map":
		value = f.value.Interface()
	}
	node := &yaml.Node{}
	if err := node.Encode(value); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return node, nil
}
