package architecture_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/architecture"
)

var (
	code = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	// link is a Markdown link; the target ends before an anchor.
	link = regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`)
)

// documents returns the text of all Markdown files by path.
func documents(t *testing.T) (root string, texts map[string]string) {
	t.Helper()
	root, err := architecture.Root()
	require.NoError(t, err)
	files, err := architecture.Files(root)
	require.NoError(t, err)
	texts = map[string]string{}
	for _, file := range files {
		if path.Ext(file) == ".md" {
			text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
			require.NoError(t, err)
			texts[file] = string(text)
		}
	}
	return root, texts
}

// Tables, blocks of code and words such as long links may be wider.
func TestLinesOfDocumentsHaveAtMost120Columns(t *testing.T) {
	t.Parallel()
	_, texts := documents(t)
	for file, text := range texts {
		if strings.HasPrefix(file, "docs/reference/") {
			continue // generated
		}
		inBlock := false
		for i, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				inBlock = !inBlock
			}
			if inBlock || strings.HasPrefix(line, "|") || !strings.Contains(strings.TrimSpace(line), " ") {
				continue
			}
			require.LessOrEqual(t, utf8.RuneCountInString(line), 120, "%s:%d", file, i+1)
		}
	}
}

func TestLinksOfDocumentsAreValid(t *testing.T) {
	t.Parallel()
	root, texts := documents(t)
	links := 0
	for file, text := range texts {
		for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			target := found[1]
			if strings.Contains(target, ":") {
				continue // an address, not a file
			}
			links++
			_, err := os.Stat(filepath.Join(root, filepath.FromSlash(path.Join(path.Dir(file), target))))
			require.NoError(t, err, "%s links to %s", file, target)
		}
	}
	require.Greater(t, links, 50)
}
