package pipeline

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/job"
)

// onRunner returns the variables as a runner makes them: it replaces one level.
func onRunner(list []job.Variable) map[string]string {
	original := values(list)
	out := map[string]string{}
	for _, v := range list {
		if out[v.Key] = v.Value; !v.Raw {
			out[v.Key] = os.Expand(v.Value, func(key string) string {
				if key == "$" {
					return "$"
				}
				return original[key]
			})
		}
	}
	return out
}

func TestExpandMakesOneLevelEnough(t *testing.T) {
	t.Parallel()
	list := []job.Variable{
		{Key: "IMAGE", Value: "$REPOSITORY:${TAG}"},
		{Key: "REPOSITORY", Value: "registry.example.com/$NAME"},
		{Key: "NAME", Value: "app"},
		{Key: "TAG", Value: "v${MAJOR}.$MINOR"},
		{Key: "MAJOR", Value: "1"},
		{Key: "MINOR", Value: "2"},
		{Key: "PRICE", Value: "5$$"},
		{Key: "BILL", Value: "$PRICE for $NAME$"},
		{Key: "RAW", Value: "$NAME", Raw: true},
		{Key: "OF_RAW", Value: "<$RAW>"},
		{Key: "OF_OF_RAW", Value: "[$OF_RAW]"},
		{Key: "FILE", Value: "content of $NAME", File: true},
		{Key: "OF_FILE", Value: "cat $FILE"},
		{Key: "OF_JOB", Value: "$LATER-$NAME"},
		{Key: "LATER", Value: "$CI_JOB_ID"},
		{Key: "A", Value: "$B"},
		{Key: "B", Value: "$A"},
		{Key: "SELF", Value: "$SELF:x"},
		{Key: "ODD", Value: "${NAME $1 ${} $ ${1}"},
	}
	require.True(t, expand(list, 10_000))
	require.Equal(t, map[string]string{
		"IMAGE": "registry.example.com/app:v1.2", "REPOSITORY": "registry.example.com/app", "NAME": "app", "TAG": "v1.2",
		"MAJOR": "1", "MINOR": "2", "PRICE": "5$$", "BILL": "5$$ for app$", "RAW": "$NAME", "OF_RAW": "<$RAW>",
		"OF_OF_RAW": "[<$RAW>]", "FILE": "content of app", "OF_FILE": "cat $FILE", "OF_JOB": "$CI_JOB_ID-app",
		"LATER": "$CI_JOB_ID", "A": "$A", "B": "$A", "SELF": "$SELF:x", "ODD": "${NAME $1 ${} $ ${1}",
	}, values(list))
	runner := onRunner(list)
	require.Equal(t, "[<$NAME>]", runner["OF_OF_RAW"])
	require.Equal(t, "5$ for app$", runner["BILL"])
}

func TestExpandIsLimited(t *testing.T) {
	t.Parallel()
	list := []job.Variable{{Key: "A", Value: "12345678"}}
	for key := 'B'; key <= 'Z'; key++ {
		before := "$" + string(key-1)
		list = append(list, job.Variable{Key: string(key), Value: strings.Repeat(before, 10)})
	}
	require.True(t, expand(slices.Clone(list[:4]), 8888))
	require.False(t, expand(slices.Clone(list[:4]), 8887))
	require.False(t, expand(list, 100_000), "the work is limited, not only the result")
	total := 0
	for _, v := range list {
		total += len(v.Value)
	}
	require.Less(t, total, 1_000_000)
}

// FuzzExpand checks that expand returns, that raw values stay, and that the limit holds.
func FuzzExpand(f *testing.F) {
	f.Add("$B", "${C}x", "$$A", false)
	f.Add("$A$B", "$A", "${", true)
	f.Fuzz(func(t *testing.T, a, b, c string, raw bool) {
		list := []job.Variable{{Key: "A", Value: a}, {Key: "B", Value: b}, {Key: "C", Value: c, Raw: raw}}
		const limit = 1000
		if !expand(list, limit) {
			return
		}
		total := 0
		for _, v := range list {
			total += len(v.Value)
		}
		require.LessOrEqual(t, total, limit)
		if raw {
			require.Equal(t, c, list[2].Value)
		}
		if !strings.Contains(a+b+c, "$") {
			require.Equal(t, []string{a, b, c}, []string{list[0].Value, list[1].Value, list[2].Value})
		}
	})
}
