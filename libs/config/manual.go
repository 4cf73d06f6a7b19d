package config

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// width is that of the manual, in columns.
const width = 100

// Manual returns the output of --help: the program, the sources of its configuration, every setting
// by group.
func (b *Binding) Manual(program Program) string {
	_, standard := b.flagSets(program)
	var m strings.Builder
	m.WriteString(strings.TrimSpace(program.Name+" "+program.Version) + "\n\n")
	if program.About != "" {
		m.WriteString(wrap(program.About) + "\n\n")
	}
	fmt.Fprintf(&m, "Usage:\n  %s [--config file.yaml] [flags]\n\n", program.Name)
	m.WriteString(
		wrap("Each setting is a flag, an environment variable and a key of the YAML file; brackets show the last two. "+
			"A flag overrides the environment, and the environment overrides the file. A key such as nats.url is "+
			"nats: {url: …} in the file. An empty variable counts as unset. In a flag and in the environment "+
			"a list is "+
			"a,b and a map is k=v,k=v.") + "\n\n",
	)
	m.WriteString(standard.FlagUsagesWrapped(width))
	written := map[string]bool{}
	for _, s := range b.sections {
		flags := pflag.NewFlagSet(s.key, pflag.ContinueOnError)
		flags.SortFlags = false
		for _, f := range b.fields {
			if f.group == s.key {
				flags.AddFlag(f.flag)
			}
		}
		// The settings of inline structs belong to the group around them.
		if written[s.key] || !flags.HasFlags() {
			continue
		}
		written[s.key] = true
		title := s.key
		if title == "" {
			title = "general"
		}
		if s.help != "" {
			title += ": " + s.help
		}
		m.WriteString("\n" + wrap(title) + "\n" + flags.FlagUsagesWrapped(width))
	}
	return m.String()
}

// wrap breaks text into lines.
func wrap(text string) string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return strings.Join(append(lines, line), "\n")
}

// Print returns the effective settings as a YAML file with their origins as comments and secrets
// hidden.
func (b *Binding) Print() (string, error) {
	var root yaml.Node
	if err := root.Encode(b.config); err != nil {
		return "", fmt.Errorf("print the configuration: %w", err)
	}
	if len(b.fields) == 0 {
		return "", nil
	}
	b.comment(&root, b.prefix)
	var out strings.Builder
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&root); err != nil {
		return "", fmt.Errorf("print the configuration: %w", err)
	}
	return out.String(), nil
}

// comment adds the origin of each value that is not a default.
func (b *Binding) comment(node *yaml.Node, prefix string) {
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := join(prefix, node.Content[i].Value)
		if f, ok := b.byKey[key]; !ok {
			b.comment(node.Content[i+1], key)
		} else if f.origin != "default" {
			node.Content[i].HeadComment = "from " + f.origin
		}
	}
}
