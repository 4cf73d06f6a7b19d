package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageError is an error in the command line.
type usageError struct{ error }

func usage(c *cobra.Command, format string, args ...any) error {
	return usageError{fmt.Errorf("%s: see `%s --help`", fmt.Sprintf(format, args...), c.CommandPath())}
}

// group returns a command that only has subcommands.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: showGroup}
	c.AddCommand(commands...)
	return c
}

// showGroup shows the subcommands, or says which one is unknown.
func showGroup(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help() //nolint:wrapcheck // the output is closed
	}
	return unknownCommand(c, args)
}

func unknownCommand(c *cobra.Command, args []string) error {
	message := fmt.Sprintf("unknown command %q", strings.Join(args, " "))
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		message += fmt.Sprintf(", did you mean %q?", near[0])
	}
	return usage(c, "%s", message)
}

// help replaces the command of cobra, which succeeds for an unknown command.
func (a *app) help() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND…]", Short: "Show the manual of a command",
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			found, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []string
			for _, one := range found.Commands() {
				if one.IsAvailableCommand() {
					names = append(names, one.Name()+"\t"+one.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			found, rest, err := c.Root().Find(args)
			if err != nil {
				return usage(c, "%v", err)
			}
			if len(rest) > 0 {
				return unknownCommand(found, rest)
			}
			return found.Help()
		},
	}
}

// flagError says in plain words what is wrong with a flag.
func flagError(c *cobra.Command, err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return usage(c, "%v", err)
	}
	want := map[string]string{
		"duration":       "a duration such as 90s, 8h or 7d",
		"bool":           "true or false",
		"stringToString": "NAME=VALUE",
		"int":            "a number", "int32": "a number", "int64": "a number",
		"uint64": "a number that is not negative",
	}[invalid.GetFlag().Value.Type()]
	if want == "" {
		return usage(c, "%v", err)
	}
	return usage(c, "--%s %q must be %s", invalid.GetFlag().Name, invalid.GetValue(), want)
}

// exactly returns a check of the number of arguments. Its error names them.
func exactly(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return usage(c, "wrong number of arguments, want %s", wanted(names))
	}
}

// atMost returns a check of the number of optional arguments.
func atMost(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) <= len(names) {
			return nil
		}
		return usage(c, "wrong number of arguments, want at most %s", wanted(names))
	}
}

func wanted(names []string) string {
	if len(names) == 0 {
		return "no arguments"
	}
	return strings.Join(names, " ")
}
