package service

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommitIsTheRevisionOfTheBuild(t *testing.T) {
	t.Parallel()
	info := &debug.BuildInfo{Settings: []debug.BuildSetting{
		{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "4f5e"}, {Key: "vcs.modified", Value: "false"},
	}}
	require.Equal(t, "4f5e", commitOf(info))
	require.Empty(t, commitOf(&debug.BuildInfo{}), "a build outside of a repository")
}
