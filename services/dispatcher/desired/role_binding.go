package desired

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"lockstep.internal/libs/kubename"
)

// checkRoleBinding returns nil for the manifest of a RoleBinding that gives one person the role of owners of
// workspaces. The admission policy of the agent requires the same.
func checkRoleBinding(manifest map[string]any, agent int64) error {
	fields := []string{"apiVersion", "kind", "metadata", "roleRef", "subjects"}
	if err := checkFields("the RoleBinding", manifest, fields); err != nil {
		return err
	}
	ref, _ := manifest["roleRef"].(map[string]any)
	role := kubename.OwnerRole(agent)
	if len(ref) != 3 || ref["apiGroup"] != rbacv1.GroupName || ref["kind"] != "ClusterRole" || ref["name"] != role {
		return fmt.Errorf("roleRef must be the ClusterRole %s", role)
	}
	subjects, _ := manifest["subjects"].([]any)
	if len(subjects) != 1 {
		return errors.New("subjects must have one entry, the owner")
	}
	subject, _ := subjects[0].(map[string]any)
	name, _ := subject["name"].(string)
	id, isUser := strings.CutPrefix(name, kubename.UserPrefix)
	_, err := strconv.ParseUint(id, 10, 63)
	if len(subject) != 3 || subject["apiGroup"] != rbacv1.GroupName || subject["kind"] != rbacv1.UserKind ||
		!isUser || err != nil {
		return fmt.Errorf("subjects[0] must be a User %s<id>", kubename.UserPrefix)
	}
	return nil
}
