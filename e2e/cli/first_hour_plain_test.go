package cli_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// different has what each system prints differently, and the placeholder of the page.
var different = []struct {
	pattern *regexp.Regexp
	shown   string
}{
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "<uuid>"},
	{regexp.MustCompile(`(<uuid>/<uuid>/\d+)/[0-9a-z]+`), "$1/<hash>"},
	{regexp.MustCompile(`\b[0-9a-f]{32}\b`), "<id>"},
	{regexp.MustCompile(`(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d\.\d{3}`), "<time>"},
	{regexp.MustCompile(`127\.0\.0\.1:\d{4,5}`), "127.0.0.1:<port>"},
	{regexp.MustCompile(`\.localhost:\d{4,5}`), ".localhost:<port>"},
	{regexp.MustCompile(`\?code=[0-9A-Za-z_-]+`), "?code=<code>"},
	{regexp.MustCompile(`lsp_[0-9A-Za-z_.-]+`), "lsp_<secret>"},
	{regexp.MustCompile(`\(\d+\)`), "(<id>)"},
	{regexp.MustCompile(`\b(token|agent|ws|pipeline|pipelines get|runner|controller|job)([ -])\d+\b`), "$1$2<id>"},
	{regexp.MustCompile(`\bafter \d+(\.\d+)?m?s\b`), "after <duration>"},
	{regexp.MustCompile(`\bread \d+ of \d+ messages`), "read <number> of <number> messages"},
	{regexp.MustCompile(`-[0-9a-f]{8,10}-[0-9a-z]{5}\b`), "-<pod>"},
	// A pull fails once, and is then waited for. The state is the same.
	{regexp.MustCompile(`\(ImagePullBackOff\)`), "(ErrImagePull)"},
}

// header matches the first line of a table.
var header = regexp.MustCompile(`^[A-Z][A-Z0-9]*( {1,}[A-Z0-9]+)+ *$`)

// changing are the columns, and in tables of fields the fields, whose values are different each time.
var changing = []string{
	"AGE", "BEGUN", "CLUSTER", "CONNECTION", "CONTACTED", "DURATION", "ID", "JOB", "LAST SEEN", "LAST USED",
	"OBSERVED", "OCCURRED", "P50",
	"P95", "RELAY", "RUNNER", "SINCE", "STARTED", "VERSION",
	"begun", "cluster", "created", "drained", "duration", "ended", "id", "job", "last resync", "last seen",
	"ssh authorities", "started", "stored objects",
}

// plainText replaces what each system prints differently in a text without columns.
func plainText(text string) string {
	for _, each := range different {
		text = each.pattern.ReplaceAllString(text, each.shown)
	}
	return text
}

// plain replaces what each system prints differently.
func plain(text string) string {
	lines := strings.Split(text, "\n")
	for at := 0; at < len(lines); at++ {
		if !header.MatchString(lines[at]) {
			lines[at] = strings.TrimRight(plainText(lines[at]), " ")
			continue
		}
		end := at + 1
		for end < len(lines) && lines[end] != "" {
			end++
		}
		copy(lines[at:end], plainTable(lines[at:end]))
		at = end - 1
	}
	return strings.Join(lines, "\n")
}

// columns finds the beginnings of the columns of a table.
var columns = regexp.MustCompile(`(^|   +)(\S+( \S+)*)`)

// plainTable replaces the values of a table that change, and aligns its columns again.
func plainTable(lines []string) []string {
	var starts []int
	for _, match := range columns.FindAllStringSubmatchIndex(lines[0], -1) {
		starts = append(starts, match[4])
	}
	rows := make([][]string, len(lines))
	for i, line := range lines {
		runes := []rune(line)
		for j, start := range starts {
			end := len(runes)
			if j+1 < len(starts) {
				end = min(end, starts[j+1])
			}
			rows[i] = append(rows[i], plainText(strings.TrimSpace(string(runes[min(start, end):end]))))
		}
	}
	for _, row := range rows[1:] {
		for j, value := range row {
			name := rows[0][j]
			if name == "VALUE" {
				name = row[0]
			}
			if slices.Contains(changing, name) && value != "" && value != "-" && value != "never" {
				row[j] = "<" + strings.ToLower(name) + ">"
			}
		}
	}
	out := make([]string, len(rows))
	for j := range starts {
		width := 0
		for _, row := range rows {
			width = max(width, len([]rune(row[j])))
		}
		for i, row := range rows {
			out[i] += row[j] + strings.Repeat(" ", width-len([]rune(row[j]))+3)
		}
	}
	for i := range out {
		out[i] = strings.TrimRight(out[i], " ")
	}
	return out
}

// withoutStates leaves out all states of a workspace but the last one: some of them may be too short to be seen.
func withoutStates(text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	isState := func(line string) bool { return strings.HasPrefix(line, "<time>  ") }
	first := slices.IndexFunc(lines, isState)
	if first < 0 {
		return text
	}
	last := first
	for last+1 < len(lines) && isState(lines[last+1]) {
		last++
	}
	if last+1 < len(lines) {
		last++ // the error has the last state, too
	}
	return strings.Join(append(append(lines[:first:first], "…"), lines[last:]...), "\n") + "\n"
}

func TestPagesShowNothingThatIsDifferentEachTime(t *testing.T) {
	t.Parallel()
	require.Equal(t, strings.Join([]string{
		"NAME         ACTUAL    AGE     MESSAGE", "mine-<pod>   Running   <age>", "",
		"FIELD       VALUE", "id          <id>", "last seen   never", "",
		"set it of agent <id> at 127.0.0.1:<port>",
	}, "\n"), plain(strings.Join([]string{
		"NAME                    ACTUAL    AGE   MESSAGE", "mine-6d44d89594-smxm9   Running   26s   ", "",
		"FIELD       VALUE", "id          17", "last seen   never", "",
		"set it of agent 6 at 127.0.0.1:43751",
	}, "\n")))
	require.Equal(t, "…\n<time>  mine  Running\n",
		withoutStates("<time>  mine  Starting\n<time>  mine  Running\n"))
	require.Equal(t, "…\nlockstep: failed\n", withoutStates("<time>  mine  Failed\nlockstep: failed\n"))
}
