package condition_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/cifile/condition"
)

func variables() map[string]string {
	return map[string]string{
		"BRANCH": "main", "EMPTY": "", "TAG": "v1.2.3", "PATTERN": "/^v[0-9]/", "UPPER": "/^MA/i", "NO_PATTERN": "main",
		"BROKEN": "/(/", "_A1": "x", "LINES": "one\ntwo",
	}
}

func TestEvaluate(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]bool{
		// A variable alone.
		`$BRANCH`: true, `${BRANCH}`: true, `$EMPTY`: false, `$MISSING`: false, `$_A1`: true,
		`"text"`: true, `""`: false, `null`: false,
		// Equality, null and empty.
		`$BRANCH == "main"`: true, `$BRANCH == 'main'`: true, `$BRANCH != "main"`: false, `$BRANCH=="main"`: true,
		`"main" == $BRANCH`: true, `$BRANCH == $NO_PATTERN`: true, `"a" == "b"`: false,
		`$MISSING == null`: true, `$MISSING != null`: false, `$EMPTY == null`: false, `$EMPTY != null`: true,
		`$EMPTY == ""`: true, `$MISSING == ""`: false, `$MISSING != ""`: true, `$MISSING == $ALSO_MISSING`: true,
		`null == null`: true,
		// Patterns.
		`$TAG =~ /^v/`: true, `$TAG !~ /^v/`: false, `$BRANCH =~ /MAIN/`: false, `$BRANCH =~ /MAIN/i`: true,
		`$BRANCH =~ /a\/b/`: false, `"a/b" =~ /a\/b/`: true, `$LINES =~ /^two$/`: false, `$LINES =~ /^two$/m`: true,
		`$LINES =~ /one.two/s`: true, `$MISSING =~ /./`: false, `$MISSING !~ /./`: true, `$MISSING =~ /^$/`: true,
		`$TAG =~ $PATTERN`: true, `$BRANCH =~ $UPPER`: true, `$BRANCH =~ $NO_PATTERN`: false,
		`$BRANCH !~ $NO_PATTERN`: true, `$BRANCH =~ $BROKEN`: false, `$BRANCH =~ $MISSING`: false,
		`$BRANCH !~ $MISSING`: true,
		// Precedence: && binds tighter than ||.
		`$BRANCH || $MISSING && $MISSING`: true, `($BRANCH || $MISSING) && $MISSING`: false,
		`$BRANCH && $EMPTY`: false, `$EMPTY && $BRANCH`: false, `$EMPTY || $BRANCH`: true,
		`$MISSING && $MISSING || $BRANCH`: true, `(($BRANCH))`: true,
		`$BRANCH == "main" && ($TAG =~ /^v/ || $MISSING)`: true,
		"$BRANCH == \"main\"\n  && $TAG":                  true,
	} {
		c, err := condition.Parse(source)
		require.NoError(t, err, source)
		require.Equal(t, want, c.Evaluate(variables()), source)
		require.Equal(t, source, c.String())
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		source string
		offset int
		want   string
	}{
		{"", 0, "expected a variable, a text or null, found the end"},
		{"  ", 2, "found the end"},
		{`$A ==`, 5, "found the end"},
		{`$A == ==`, 6, "found =="},
		{`$A && `, 6, "found the end"},
		{`$A $B`, 3, "unexpected $B after the expression"},
		{`($A`, 3, "expected ), found the end"},
		{`$A)`, 2, "unexpected ) after"},
		{`main`, 0, `write $main for a variable or "main" for a text`},
		{`$A == main`, 6, `write $main`},
		{`nullable`, 0, `write $nullable`},
		{`$A == "main`, 6, `the string has no closing "`},
		{`$A == 'main"`, 6, `the string has no closing '`},
		{`$A =~ /main`, 6, "the pattern has no closing /"},
		{`$A =~ /(/`, 6, "not an RE2 pattern"},
		{`$A =~ /(a{500}){3}/`, 6, "not an RE2 pattern"},
		{`$A =~ /a{900}b{900}/`, 6, "too large: use smaller repetitions"},
		{`$A =~ /(?=x)/`, 6, "not an RE2 pattern"},
		{`$A =~ "main"`, 6, "=~ needs a /pattern/"},
		{`$A =~ null`, 6, "=~ needs a /pattern/"},
		{`$A == /main/`, 6, "a pattern stands right of"},
		{`/main/ =~ $A`, 0, "a pattern stands right of"},
		{`/main/`, 0, "a pattern stands right of"},
		{`$A == $B == $C`, 9, "comparisons do not chain"},
		{`$`, 0, "needs the name of a variable"},
		{`$1`, 0, "needs the name of a variable"},
		{`${A`, 0, "no closing }"},
		{`!$A`, 0, `unexpected "!"`},
		{`$A & $B`, 3, `unexpected "&"`},
		{`$A = "é"`, 3, `unexpected "="`},
		{`é`, 0, `unexpected "é"`},
		{strings.Repeat("(", 33) + "$A" + strings.Repeat(")", 33), 32, "more than 32 nested parentheses"},
		{strings.Repeat("$A&&", 300) + "$A", 1024, "more than 512 terms"},
		{`"` + strings.Repeat("a", condition.MaxBytes) + `"`, 0, "more than 4096 bytes"},
		{`$A =~ /` + strings.Repeat("a", 513) + `/`, 6, "at most 512 bytes"},
	} {
		_, err := condition.Parse(test.source)
		require.ErrorContains(t, err, test.want, test.source)
		var syntax *condition.SyntaxError
		require.ErrorAs(t, err, &syntax)
		require.Equal(t, test.offset, syntax.Offset, test.source)
	}
}

func TestCostGrowsWithPatternAndText(t *testing.T) {
	t.Parallel()
	cost := func(source, value string) int64 {
		c, err := condition.Parse(source)
		require.NoError(t, err)
		return c.Cost(map[string]string{"A": value, "P": "/a/"})
	}
	long := strings.Repeat("a", 1000)
	require.Equal(t, int64(1), cost(`$A == "a"`, long))
	require.Greater(t, cost(`$A =~ /a/`, long), int64(1000))
	require.Greater(t, cost(`$A =~ /a{500}/`, long), int64(500_000))
	require.Equal(t, int64(1_001_000), cost(`$A =~ $P`, long), "a pattern in a variable counts as the largest")
	require.Equal(t, 2*cost(`$A =~ /a/`, long), cost(`$A =~ /a/ || $A =~ /a/`, long))
}

// FuzzParse checks that every source is parsed or refused with a position, that a condition is true or false for any
// variables, and that parentheses around it change nothing.
func FuzzParse(f *testing.F) {
	for _, source := range []string{
		`$A == "b" && ($C != null || $D =~ /x/i)`, `${A} !~ $B`, `null`, `((($A)))`, `$A =~ /\//`, `'`, `/\`,
	} {
		f.Add(source, "value")
	}
	f.Fuzz(func(t *testing.T, source, value string) {
		c, err := condition.Parse(source)
		if err != nil {
			var syntax *condition.SyntaxError
			require.ErrorAs(t, err, &syntax)
			require.GreaterOrEqual(t, syntax.Offset, 0)
			require.LessOrEqual(t, syntax.Offset, len(source))
			require.NotEmpty(t, syntax.Message)
			return
		}
		v := map[string]string{"A": value, "B": "/" + value + "/", "C": ""}
		got := c.Evaluate(v)
		wrapped, err := condition.Parse("(" + source + ")")
		if err == nil { // else it exceeds a limit
			require.Equal(t, got, wrapped.Evaluate(v))
		}
	})
}
