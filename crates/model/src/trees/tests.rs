//! Faulty files and their errors. The answers of models are tested with the backend.

use super::*;
use crate::limits::{TREE_LEAF_VALUES_MAX, TREE_VALUES_MAX};
use base::limits::TREE_NODES_MAX;

const XGBOOST: &str = include_str!("../../../../fuzz/corpus/trees/xgboost.json");
const UBJSON: &[u8] = include_bytes!("../../../../fuzz/corpus/trees/xgboost.ubj");
const BINARY: &[u8] = include_bytes!("../../../../fuzz/corpus/trees/xgboost.model");
const LIGHTGBM: &str = include_str!("../../../../fuzz/corpus/trees/lightgbm.txt");
const TREELITE: &[u8] = include_bytes!("../../../../fuzz/corpus/trees/forest.tl");

fn refusal(file: &[u8]) -> String {
    match decode(file, None) {
        Ok(model) => panic!("it is read: {model:?}"),
        Err(error) => error.text().to_owned(),
    }
}

#[test]
fn formats_are_told_apart_by_their_first_bytes() {
    let check = |file: &[u8], want| assert_eq!(TreeFormat::of(file), want, "{file:?}");
    check(XGBOOST.as_bytes(), Some(TreeFormat::XgboostJson));
    check(b" {\n \"learner\"", Some(TreeFormat::XgboostJson));
    check(UBJSON, Some(TreeFormat::XgboostUbjson));
    check(LIGHTGBM.as_bytes(), Some(TreeFormat::LightGbm));
    check(TREELITE, Some(TreeFormat::Treelite));
    check(b"", None);
    check(BINARY, Some(TreeFormat::XgboostBinary));
    check(&BINARY[4..], Some(TreeFormat::XgboostBinary));
    let with_base_score = |bytes: &[u8]| [bytes, &BINARY[8..]].concat();
    check(&with_base_score(b"{\"x\""), Some(TreeFormat::XgboostBinary));
    check(&with_base_score(&[3, 0, 0, 0]), Some(TreeFormat::XgboostBinary));
    check(&with_base_score(b"\x80\x04pi")[..160], None);
    check(b"\x80\x04pickle", None);
    assert_eq!(refusal(b""), "the file is an empty file");
    assert_eq!(
        refusal(b"\x80\x04pickle"),
        "the file is neither XGBoost JSON, UBJSON or its old binary format, nor LightGBM text, nor a Treelite checkpoint"
    );
}

/// A text with a part of it replaced.
fn changed(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from} is in it");
    text.replacen(from, to, 1)
}

#[test]
fn a_broken_xgboost_model_is_refused_by_what_is_wrong_in_it() {
    let check = |from: &str, to: &str, want: &str| {
        let got = refusal(changed(XGBOOST, from, to).as_bytes());
        assert!(got.contains(want), "{from} -> {to}: {got}");
    };
    check("\"left_children\":[1,", "\"left_children\":[9,", "tree 0: a child is node 9, and there are 5 nodes");
    check("\"left_children\":[1,", "\"left_children\":[0,", "tree 0: node 0 is reached in two ways, so it is no tree");
    check("\"left_children\":[1,", "\"left_children\":[2,", "tree 0: node 2 is reached in two ways, so it is no tree");
    check("\"left_children\":[1,", "\"left_children\":[-7,", "the left child of node 0 is -7");
    check("\"left_children\":[1,", "\"left_children\":[1.5,", "'left_children': expected integers of 32 bits");
    check("\"left_children\":[1,", "\"left_children\":[", "but another array has 5 elements");
    check("\"split_indices\":[", "\"split_indices\":[3,", "another array has 6 elements");
    check("\"num_feature\":\"3\",\"num_target", "\"num_feature\":\"0\",\"num_target", "tests feature");
    check("\"num_class\":\"0\"", "\"num_class\":\"70000\"", "its number of classes is 70000, expected 1 to 65536");
    check("\"tree_info\":[0]", "\"tree_info\":[1]", "tree 0: its leaves are for output 1, and there are 1");
    check("\"tree_info\":[0]", "\"tree_info\":[]", "tree 0: 'tree_info' says output -1");
    check("\"base_score\":\"[", "\"base_score\":\"[a", "'base_score' is '[a");
    check("\"base_score\":\"[", "\"base_score\":\"[0.5,", "expected a number or a list of 1");
    check("\"base_score\":\"[", "\"base_score\":\"[1", "which its objective excludes");
    check("binary:logistic", "reg:own", "XGBoost JSON that is not served: objective 'reg:own'");
    check("\"name\":\"gbtree\"", "\"name\":\"gblinear\"", "booster 'gblinear' is a linear model and no trees");
    check("\"categories_sizes\":[", "\"categories_sizes\":[1", "its nodes have more categories than");
    check("\"categories_nodes\":[0", "\"categories_nodes\":[4", "node 0 is a categorical split without categories");
    check("\"trees\":[{", "\"trees\":[7,{", "'trees' is not an array of objects");
    check("\"learner\"", "\"lerner\"", "it has no 'learner'");
    assert!(refusal(&XGBOOST.as_bytes()[..300]).contains("XGBoost JSON that cannot be read: Missing a"));
}

#[test]
fn a_broken_ubjson_document_is_refused_with_its_place() {
    let check = |file: &[u8], want: &str| {
        let got = refusal(file);
        assert!(got.contains(want), "{got}");
    };
    check(&UBJSON[..200], "XGBoost UBJSON that cannot be read: the file is cut off at byte");
    check(&[UBJSON, b"Z"].concat(), "something follows the document at byte");
    check(b"{i\xff", "a length is negative at byte 3");
    check(b"{i\x01a[$l#L\x7f\xff\xff\xff\xff\xff\xff\xff", "an array is too long");
    check(b"{i\x01a[$l#L\x00\x00\x00\x00\x7f\xff\xff\xff", "the file is cut off");
    check(b"{i\x01aSi\x01\xff}", "a string is not UTF-8");
    check(&[b"{i\x01a".as_slice(), &[b'['; 200]].concat(), "it is nested deeper than 100");
    let many = vec![b'Z'; TREE_VALUES_MAX + 1];
    check(&[b"{i\x01a[".as_slice(), &many].concat(), "it has more than 4194304 values outside of arrays of numbers");
}

#[test]
fn a_broken_model_in_xgboosts_old_binary_format_is_refused_by_what_is_wrong_in_it() {
    let check = |at: usize, bytes: &[u8], want: &str| {
        let mut file = BINARY.to_vec();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        let got = refusal(&file);
        assert!(got.contains(want), "{at}: {got}");
    };
    // The mark, the learner, the names, and the head of the trees.
    let (learner, objective, booster) = (4, 140, 163);
    let trees = booster + 8 + 4;
    let (tree, node) = (trees + 160, trees + 160 + 148);
    check(learner, &2.0_f32.to_le_bytes(), "'base_score' is 2, which its objective excludes");
    check(learner, &f32::NAN.to_le_bytes(), "'base_score' is NaN, which its objective excludes");
    check(learner + 4, &[0; 4], "tree 0: node 0 tests feature");
    check(learner + 4, &[255; 4], "its number of features is 4294967295, expected 0 to 16777216");
    check(learner + 8, &70_000_u32.to_le_bytes(), "its number of classes is 70000, expected 1 to 65536");
    check(learner + 28, &70_000_u32.to_le_bytes(), "its number of targets is 70000, expected 1 to 65536");
    check(objective, &[255; 8], "the length of a text is more than 1176 bytes can hold");
    check(objective + 8, b"x", "that is not served: objective 'xinary:logistic'");
    check(booster + 8, b"tree", "that is not served: booster 'tree'");
    check(trees, &[255; 4], "its number of trees is -1");
    check(trees, &[255, 255, 255, 127], "tree 2: ");
    check(tree, &[2], "that is not served: tree 0: it has 2 roots");
    check(tree + 4, &[0; 4], "tree 0: its number of nodes is 0");
    check(tree + 4, &[255, 255, 255, 127], "tree 0: it is cut off: 42949672940 bytes are missing at byte");
    check(tree + 20, &[3], "that is not served: tree 0: its leaves have 3 values");
    check(node + 4, &[9], "tree 0: a child is node 9, and there are");
    check(node + 4, &[0], "tree 0: node 0 is reached in two ways");
    check(node + 4, &[254, 255, 255, 255], "tree 0: left child -2 of node 0");
    check(node + 16, &f32::NAN.to_le_bytes(), "tree 0: the threshold of node 0 is not a number");
    let mut before_1_0 = BINARY.to_vec();
    before_1_0[learner..learner + 4].copy_from_slice(&2.0_f32.to_le_bytes());
    before_1_0[learner + 20] = 0;
    assert_eq!(decode(&before_1_0, None).unwrap().start, [2.0], "it is the sum");
    // Behind the weights are only attributes, which are not read.
    let end = tree + 2 * (148 + 7 * (20 + 16)) + 2 * 4 + (8 + 2 * 4);
    assert!(decode(&BINARY[..end], None).is_ok());
    check(end - 16, &[3], "it has 3 weights for 2 trees");
    check(end - 24, &[255; 4], "tree 0 is for output -1");
    for at in 4..end {
        let got = refusal(&BINARY[..at]);
        assert!(got.starts_with("XGBoost's old binary format that cannot be read: "), "{at}: {got}");
    }
}

#[test]
fn a_broken_lightgbm_model_is_refused_by_what_is_wrong_in_it() {
    let check = |from: &str, to: &str, want: &str| {
        let got = refusal(changed(LIGHTGBM, from, to).as_bytes());
        assert!(got.contains(want), "{from} -> {to}: {got}");
    };
    check("left_child=-1 -2", "left_child=1 -2", "tree 0: node 1 is reached in two ways");
    check("left_child=-1 -2", "left_child=2 -2", "tree 0: a child of split 0 is split 2 of 2");
    check("left_child=-1 -2", "left_child=-9 -2", "tree 0: a child is node 10, and there are 5 nodes");
    check("left_child=-1 -2", "left_child=-1", "tree 0: 'left_child' has 1 numbers, expected 2");
    check("left_child=-1 -2", "left_child=-1 x", "tree 0: 'left_child' has 'x'");
    check("threshold=0 0.9", "threshold=0 nan0.9", "'threshold' has 'nan0.9");
    check("threshold=0 0.95371586084365856", "threshold=0 nan", "the threshold of node 1 is not a number");
    check("threshold=0 0.9", "threshold=5 0.9", "split 0 is categorical, and its set 5 is not there");
    check("split_feature=2 0", "split_feature=3 0", "node 0 tests feature 3, and there are 3 features");
    check("split_feature=2 0", "split_feature=-1 0", "'split_feature' has '-1'");
    check("cat_boundaries=0 1", "cat_boundaries=1 0", "'cat_threshold' has 1 numbers, expected 0");
    check("cat_boundaries=0 1", "cat_boundaries=2 1", "'cat_boundaries' goes from 2 to 1");
    check("num_leaves=3", "num_leaves=4000000000", "'leaf_value' has 3 numbers, expected 4000000000");
    check("num_leaves=3", "num_leaves=0", "'num_leaves' is 0");
    check(
        "max_feature_idx=2",
        "max_feature_idx=99999999",
        "its number of features is 100000000, expected 0 to 16777216",
    );
    check("num_class=1", "num_class=2", "it has 1 trees an iteration for 2 classes");
    check("tree_sizes=471", "tree_sizes=471 471", "it announces 2 trees and has 1");
    check("is_linear=0", "is_linear=1", "LightGBM text that is not served: its leaves are linear models");
    check("binary sigmoid:1", "binary", "objective 'binary' lacks a 'sigmoid:' above 0");
    check("binary sigmoid:1", "own", "objective 'own'");
    assert!(refusal(b"tree\nmax_feature_idx=1\n").contains("it is cut off"));
}

#[test]
fn a_broken_checkpoint_is_refused_by_what_is_wrong_in_it() {
    let check = |at: usize, bytes: &[u8], want: &str| {
        let mut file = TREELITE.to_vec();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        let got = refusal(&file);
        assert!(got.contains(want), "{at}: {got}");
    };
    check(0, &[3], "it is of version 3.8.1, and only version 4 is read; write it anew with Treelite 4");
    check(12, &[2], "its thresholds are of type 2 and its leaves of type 3, expected 2 or 3");
    check(14, &[255; 8], "its number of trees is more than 619 bytes can hold");
    check(22, &[255; 4], "its number of features is -1, expected 0 to 16777216");
    check(28, &[9], "it has 9 targets and 1 numbers of classes");
    for at in 0..TREELITE.len() {
        let got = refusal(&TREELITE[..at]);
        assert!(at < 4 || got.starts_with("a Treelite checkpoint that cannot be read: "), "{at}: {got}");
    }
    assert!(refusal(&[TREELITE, b"x"].concat()).contains("1 bytes follow its last tree"));
}

#[test]
fn sizes_beyond_the_bounds_are_refused() {
    assert_eq!(check::check_sizes(TREE_NODES_MAX, TREE_LEAF_VALUES_MAX), Ok(()));
    let why = check::check_sizes(TREE_NODES_MAX + 1, 0).unwrap_err();
    assert_eq!(why, "it has 268435457 nodes, more than the 268435456 that are served");
    let why = check::check_sizes(0, TREE_LEAF_VALUES_MAX + 1).unwrap_err();
    assert_eq!(why, "its leaves have 536870913 values, more than the 536870912 that are served");
}
