package architecture

import (
	"fmt"
	"regexp"
	"strings"
)

// outsidePaths matches folders of particular machines. The pattern is concatenated so that it does
// not match itself.
var outsidePaths = regexp.MustCompile(`(^|[^\w./-])(/wo` + `rk/|/ro` + `ot/)|\.\./sha` + `red`)

// Paths returns the lines of a file that name a folder outside of the tree.
func Paths(file string, content []byte) []string {
	if !outsidePaths.Match(content) {
		return nil
	}
	var faults []string
	for number, line := range strings.Split(string(content), "\n") {
		if found := outsidePaths.FindString(line); found != "" {
			faults = append(faults,
				fmt.Sprintf("%s:%d names a folder outside of the tree: %q", file, number+1, strings.TrimSpace(found)))
		}
	}
	return faults
}
