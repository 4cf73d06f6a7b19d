package cli

import (
	"bufio"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// yesFlag adds the flag that replaces confirm.
func yesFlag(c *cobra.Command, yes *bool) {
	c.Flags().BoolVar(yes, "yes", false, "do not ask for confirmation")
}

// confirm asks the user to type a word. It refuses at once if nobody can type.
func (a *app) confirm(c *cobra.Command, what, word string) error {
	if file, ok := c.InOrStdin().(*os.File); ok && !term.IsTerminal(int(file.Fd())) {
		return fault.New(errcode.InvalidArgument,
			"not confirmed, nothing changed: %s There is no terminal to ask: confirm it with --yes", what)
	}
	if err := a.note("%s Type %q to continue:", what, word); err != nil {
		return err
	}
	typed, err := bufio.NewReader(c.InOrStdin()).ReadString('\n')
	if strings.TrimSpace(typed) != word || err != nil && typed == "" {
		return fault.New(errcode.InvalidArgument, "not confirmed, nothing changed; --yes skips the confirmation")
	}
	return nil
}
