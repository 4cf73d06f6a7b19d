package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Reference returns the manual of all commands in Markdown: docs/reference/commands.md.
func Reference() string {
	a := &app{stdout: io.Discard, stderr: io.Discard}
	root := a.root("")
	root.InitDefaultCompletionCmd()
	var b strings.Builder
	b.WriteString(
		"# Commands\n\nGenerated from `lockstep --help` by `go test ./tools/cli -run TestCommandReference -update`. " +
			"Do not edit.\n",
	)
	writeReference(&b, root)
	return b.String()
}

func writeReference(b *strings.Builder, c *cobra.Command) {
	if !c.IsAvailableCommand() && c.HasParent() || c.Name() == "completion" && c.Parent() == c.Root() {
		return
	}
	c.InitDefaultHelpFlag()
	fmt.Fprintf(b, "\n## %s\n\n", c.CommandPath())
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	b.WriteString(text + "\n")
	var block []string
	if c.Runnable() && !c.HasSubCommands() {
		block = append(block, c.UseLine())
	}
	if c.Example != "" {
		block = append(block, "\n"+c.Example)
	}
	if len(block) > 0 {
		fmt.Fprintf(b, "\n```\n%s\n```\n", strings.Join(block, "\n"))
	}
	writeFlags(b, c)
	for _, sub := range c.Commands() {
		writeReference(b, sub)
	}
}

// writeFlags writes the flags that the command does not inherit.
func writeFlags(b *strings.Builder, c *cobra.Command) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && f.Name != "version" {
			flags.AddFlag(f)
		}
	})
	if flags.HasFlags() {
		fmt.Fprintf(b, "\n```\n%s```\n", flags.FlagUsagesWrapped(120))
	}
}
