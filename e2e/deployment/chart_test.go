package deployment_test

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChartUsesSettingsThatExist(t *testing.T) {
	t.Parallel()
	variable := regexp.MustCompile(`name: (LOCKSTEP_[A-Z0-9_]+)`)
	common := variable.FindAllStringSubmatch(string(content(t, "deploy/helm/lockstep/templates/_helpers.tpl")), -1)
	require.NotEmpty(t, common)
	for _, service := range []string{"state", "deploys", "runners", "admission", "router", "gateway", "relay"} {
		environment := map[string]string{}
		own := variable.FindAllStringSubmatch(string(content(t, "deploy/helm/lockstep/templates/"+service+".yaml")), -1)
		require.NotEmpty(t, own, service)
		for _, match := range append(own, common...) {
			environment[match[1]] = ""
		}
		requireSettings(t, service, environment)
	}
}
