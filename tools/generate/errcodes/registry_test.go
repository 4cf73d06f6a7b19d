package errcodes

import (
	"strings"
	"testing"
)

const oneCode = `{"about":"x","errors":[` +
	`{"code":"not_found","http":404,"connect":"not_found","exit":5,"description":"It does not exist."}]}`

func TestParseReportsEveryBrokenRule(t *testing.T) {
	t.Parallel()
	const good = `{"code":"not_found","http":404,"connect":"not_found","exit":5,"description":"It does not exist."}`
	for name, tc := range map[string]struct {
		registry string
		want     []string // parts of the error; none = accepted
	}{
		"good":        {`{"about":"x","errors":[` + good + `]}`, nil},
		"empty":       {`{"about":"x","errors":[]}`, []string{"no codes"}},
		"unknown key": {`{"errors":[],"more":1}`, []string{"unknown field"}},
		"trailing":    {`{"errors":[` + good + `]} {}`, []string{"follows the registry"}},
		"twice": {
			`{"errors":[` + good + `,` + good + `]}`,
			[]string{"registered twice", "exit 5 belongs to not_found"},
		},
		"same Go name": {
			`{"errors":[` + good + `,{"code":"notFound","http":404,"connect":"not_found","exit":6,"description":"X."}]}`,
			[]string{"snake_case"},
		},
		"everything else": {
			`{"errors":[{"code":"Bad","http":200,"connect":"nope","exit":126,"description":"two\nlines"}]}`,
			[]string{"snake_case", "http 200", `connect "nope"`, "exit 126", "one sentence"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := parse([]byte(tc.registry))
			if len(tc.want) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}

func TestGenerateRendersTheRegistry(t *testing.T) {
	t.Parallel()
	source, err := Generate([]byte(oneCode))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{NotFound, 404, "not_found", 5, "It does not exist."}`; !strings.Contains(string(source), want) {
		t.Errorf("%s does not hold %s", source, want)
	}
	if _, err := Generate([]byte(`{}`)); err == nil {
		t.Error("an empty registry was accepted")
	}
}

func TestBreaksReportsEveryIncompatibility(t *testing.T) {
	t.Parallel()
	const more = `{"code":"more","http":500,"connect":"internal","exit":6,"description":"More."}`
	for _, tc := range []struct{ old, now, want string }{
		{"", "", ""},
		{"It does not exist.", "It is gone.", ""},
		{"[{", "[" + more + ",{", ""},
		{`"code":"not_found"`, `"code":"missing"`, "not_found: the error code is gone: callers branch on it"},
		{"404", "410", "not_found: http 404 became 410: callers branch on it"},
		{
			`"connect":"not_found"`, `"connect":"aborted"`,
			"not_found: connect not_found became aborted: callers branch on it",
		},
		{`"exit":5`, `"exit":6`, "not_found: exit 5 became 6: callers branch on it"},
	} {
		now := strings.Replace(oneCode, tc.old, tc.now, 1)
		breaks, err := Breaks([]byte(oneCode), []byte(now))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(breaks, "; "); got != tc.want {
			t.Errorf("%s: %q, want %q", now, got, tc.want)
		}
	}
	if _, err := Breaks([]byte(`{}`), []byte(oneCode)); err == nil {
		t.Error("an empty released registry was accepted")
	}
	if _, err := Breaks([]byte(oneCode), []byte(`{}`)); err == nil {
		t.Error("an empty registry was accepted")
	}
}
