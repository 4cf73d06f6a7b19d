// Package arrival receives organizations that another cell moves here. The mover is the runners service of that cell.
// It has a personal access token of an administrator of this cell, which is exchanged at the state service.
//
// Everything can be repeated. The database of this cell keeps what is stored; before the organization is open, the
// other cell can cancel the move, and everything is removed.
package arrival
