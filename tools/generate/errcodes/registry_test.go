package errcodes

import (
	"strings"
	"testing"
)

func TestParseNamesEveryBrokenRule(t *testing.T) {
	t.Parallel()
	const good = `{"code":"not_found","http":404,"connect":"not_found","exit":5,"description":"It does not exist."}`
	for name, tc := range map[string]struct {
		registry string
		want     []string // parts of the error; none = accepted
	}{
		"good":            {`{"about":"x","errors":[` + good + `]}`, nil},
		"empty":           {`{"about":"x","errors":[]}`, []string{"no codes"}},
		"unknown key":     {`{"errors":[],"more":1}`, []string{"unknown field"}},
		"trailing":        {`{"errors":[` + good + `]} {}`, []string{"follows the registry"}},
		"twice":           {`{"errors":[` + good + `,` + good + `]}`, []string{"registered twice", "exit 5 belongs to not_found"}},
		"same Go name":    {`{"errors":[` + good + `,{"code":"notFound","http":404,"connect":"not_found","exit":6,"description":"X."}]}`, []string{"snake_case"}},
		"everything else": {`{"errors":[{"code":"Bad","http":200,"connect":"nope","exit":126,"description":"two\nlines"}]}`, []string{"snake_case", "http 200", `connect "nope"`, "exit 126", "one sentence"}},
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
	source, err := Generate([]byte(`{"about":"x","errors":[{"code":"not_found","http":404,"connect":"not_found","exit":5,"description":"It does not exist."}]}`))
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

func TestBreaksNamesEveryBrokenPromise(t *testing.T) {
	t.Parallel()
	const registry = `{"about":"x","errors":[{"code":"not_found","http":404,"connect":"not_found","exit":5,"description":"It does not exist."}]}`
	for now, want := range map[string]string{
		registry: "",
		strings.Replace(registry, "It does not exist.", "It is gone.", 1):                                                       "",
		strings.Replace(registry, "[{", `[{"code":"more","http":500,"connect":"internal","exit":6,"description":"More."},{`, 1): "",
		strings.Replace(registry, `"code":"not_found"`, `"code":"missing"`, 1):                                                  "not_found: the error code is gone: callers branch on it",
		strings.Replace(registry, "404", "410", 1):                                                                              "not_found: http 404 became 410: callers branch on it",
		strings.Replace(registry, `"connect":"not_found"`, `"connect":"aborted"`, 1):                                            "not_found: connect not_found became aborted: callers branch on it",
		strings.Replace(registry, `"exit":5`, `"exit":6`, 1):                                                                    "not_found: exit 5 became 6: callers branch on it",
	} {
		breaks, err := Breaks([]byte(registry), []byte(now))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(breaks, "; "); got != want {
			t.Errorf("%s: %q, want %q", now, got, want)
		}
	}
	if _, err := Breaks([]byte(`{}`), []byte(registry)); err == nil {
		t.Error("an empty released registry was accepted")
	}
	if _, err := Breaks([]byte(registry), []byte(`{}`)); err == nil {
		t.Error("an empty registry was accepted")
	}
}
