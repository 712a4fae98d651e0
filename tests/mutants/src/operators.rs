//! What can be changed in a source file: the operators of cargo-mutants.
//!
//! Invariant: a place and its change are found by the syntax alone; whether the change compiles is
//! for the compiler to say. Each operand of a changed expression stays in the text once, so that
//! changes within changes are possible.

use std::ops::Range;

use proc_macro2::Span;
use quote::ToTokens as _;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Arm, Attribute, BinOp, Block, Expr, ExprBinary, ExprMatch, ExprUnary, Pat, UnOp};

use crate::values::values_of;

/// A place in a file, and the changes that are possible there.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// The changed expression, body or arm.
    pub(crate) range: Range<usize>,
    pub(crate) line: usize,
    /// The path of the function.
    pub(crate) function: String,
    pub(crate) shape: Shape,
    /// What is changed, and the text that is new.
    pub(crate) changes: Vec<Change>,
}

/// One change.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) what: String,
    /// The new operator, or the value that is returned.
    pub(crate) text: String,
}

/// How a site is rendered.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// After the brace: returns at once.
    Body { at: usize },
    /// Operator and its place; both operands are borrowed.
    Compare { op: Range<usize>, text: String },
    /// Both operands are taken.
    Arithmetic { op: Range<usize>, text: String },
    /// The left operand is borrowed for a change.
    Assign { op: Range<usize>, text: String },
    /// `&&` (true) or `||`.
    Logic { op: Range<usize>, is_and: bool },
    /// `!`.
    Not { op: Range<usize> },
    /// `-`.
    Negative { op: Range<usize> },
    /// An arm without a guard: after its pattern.
    ArmRemoved { at: usize },
    /// The guard of an arm: always or never.
    Guard,
    /// A field that is given beside others from `base`.
    Field { value: Range<usize>, name: String, base: String, is_short: bool },
}

/// All sites of a file.
pub(crate) fn sites(source: &str) -> syn::Result<Vec<Site>> {
    let file = syn::parse_file(source)?;
    let mut finder = Finder { source, path: Vec::new(), sites: Vec::new() };
    finder.visit_file(&file);
    Ok(finder.sites)
}

struct Finder<'s> {
    source: &'s str,
    /// Types and functions around.
    path: Vec<String>,
    sites: Vec<Site>,
}

fn bytes(span: Span) -> Range<usize> {
    span.byte_range()
}

/// Tests are not changed, nor what only tests use.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.to_token_stream().to_string().contains("test")
    })
}

impl Finder<'_> {
    fn add(&mut self, span: Span, shape: Shape, changes: Vec<(String, String)>) {
        if changes.is_empty() {
            return;
        }
        let changes = changes.into_iter().map(|(what, text)| Change { what, text }).collect();
        let (function, line) = (self.path.join("::"), span.start().line);
        self.sites.push(Site { range: bytes(span), line, function, shape, changes });
    }

    fn inside(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.path.push(name);
        visit(self);
        let _name = self.path.pop();
    }

    fn body(&mut self, signature: &syn::Signature, block: &Block) {
        if signature.constness.is_some() || block.stmts.is_empty() {
            return;
        }
        let at = bytes(block.brace_token.span.open()).end;
        let changes = values_of(&signature.output).into_iter().map(|value| {
            let shown = value.replace('\n', " ");
            (format!("replace the body with {shown}"), value)
        });
        let changes = changes.collect();
        self.add(block.span(), Shape::Body { at }, changes);
    }

    fn operator(
        &mut self,
        binary: &ExprBinary,
        new: &[&str],
        shape: fn(Range<usize>, String) -> Shape,
    ) {
        let (op, text) = (bytes(binary.op.span()), binary.op.to_token_stream().to_string());
        let changes =
            new.iter().map(|new| (format!("replace {text} with {new}"), (*new).to_owned()));
        self.add(binary.span(), shape(op, text.clone()), changes.collect());
    }
}

fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}

    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if is_for_tests(&item.attrs) {
            return;
        }
        let name = item.self_ty.to_token_stream().to_string();
        let name = name.split('<').next().unwrap_or_default().trim().to_owned();
        self.inside(name, |finder| visit::visit_item_impl(finder, item));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if is_for_tests(&item.attrs) || item.sig.constness.is_some() {
            return;
        }
        self.inside(item.sig.ident.to_string(), |finder| {
            finder.body(&item.sig, &item.block);
            visit::visit_item_fn(finder, item);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if is_for_tests(&item.attrs) || item.sig.constness.is_some() {
            return;
        }
        self.inside(item.sig.ident.to_string(), |finder| {
            finder.body(&item.sig, &item.block);
            visit::visit_impl_item_fn(finder, item);
        });
    }

    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        let compare = |op, text| Shape::Compare { op, text };
        let arithmetic = |op, text| Shape::Arithmetic { op, text };
        let assign = |op, text| Shape::Assign { op, text };
        match binary.op {
            BinOp::And(_) | BinOp::Or(_) if has_let(&binary.left) || has_let(&binary.right) => {}
            BinOp::And(_) => {
                self.operator(binary, &["||"], |op, _| Shape::Logic { op, is_and: true });
            }
            BinOp::Or(_) => {
                self.operator(binary, &["&&"], |op, _| Shape::Logic { op, is_and: false });
            }
            BinOp::Eq(_) => self.operator(binary, &["!="], compare),
            BinOp::Ne(_) => self.operator(binary, &["=="], compare),
            BinOp::Lt(_) => self.operator(binary, &["==", ">", "<="], compare),
            BinOp::Gt(_) => self.operator(binary, &["==", "<", ">="], compare),
            BinOp::Le(_) => self.operator(binary, &[">"], compare),
            BinOp::Ge(_) => self.operator(binary, &["<"], compare),
            BinOp::Add(_) => self.operator(binary, &["-", "*"], arithmetic),
            BinOp::Sub(_) => self.operator(binary, &["+", "/"], arithmetic),
            BinOp::Mul(_) => self.operator(binary, &["+", "/"], arithmetic),
            BinOp::Div(_) => self.operator(binary, &["%", "*"], arithmetic),
            BinOp::Rem(_) => self.operator(binary, &["/", "+"], arithmetic),
            BinOp::Shl(_) => self.operator(binary, &[">>"], arithmetic),
            BinOp::Shr(_) => self.operator(binary, &["<<"], arithmetic),
            BinOp::BitAnd(_) => self.operator(binary, &["|", "^"], arithmetic),
            BinOp::BitOr(_) => self.operator(binary, &["&", "^"], arithmetic),
            BinOp::BitXor(_) => self.operator(binary, &["|", "&"], arithmetic),
            BinOp::AddAssign(_) => self.operator(binary, &["-=", "*="], assign),
            BinOp::SubAssign(_) => self.operator(binary, &["+=", "/="], assign),
            BinOp::MulAssign(_) => self.operator(binary, &["+=", "/="], assign),
            BinOp::BitAndAssign(_) => self.operator(binary, &["|=", "^="], assign),
            BinOp::BitOrAssign(_) => self.operator(binary, &["&=", "^="], assign),
            _ => {}
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast ExprUnary) {
        let op = bytes(unary.op.span());
        let delete = |op: &str| vec![(format!("delete {op}"), String::new())];
        match unary.op {
            UnOp::Not(_) => self.add(unary.span(), Shape::Not { op }, delete("!")),
            UnOp::Neg(_) => self.add(unary.span(), Shape::Negative { op }, delete("-")),
            _ => {}
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_match(&mut self, matched: &'ast ExprMatch) {
        let is_wild = |arm: &Arm| matches!(arm.pat, Pat::Wild(_)) && arm.guard.is_none();
        let has_wild = matched.arms.iter().any(is_wild);
        for arm in &matched.arms {
            let pattern = arm.pat.to_token_stream().to_string();
            if let Some((_, guard)) = &arm.guard {
                let change = |to: &str| {
                    let guard = guard.to_token_stream().to_string();
                    (format!("replace the guard {guard} with {to}"), to.to_owned())
                };
                self.add(guard.span(), Shape::Guard, vec![change("true"), change("false")]);
            } else if has_wild && !is_wild(arm) {
                let at = bytes(arm.pat.span()).end;
                let what = format!("delete the arm {pattern}");
                self.add(arm.pat.span(), Shape::ArmRemoved { at }, vec![(what, String::new())]);
            }
        }
        visit::visit_expr_match(self, matched);
    }

    fn visit_expr_struct(&mut self, literal: &'ast syn::ExprStruct) {
        if let Some(base) = &literal.rest {
            let base = self.source[bytes(base.span())].to_owned();
            for field in &literal.fields {
                let name = field.member.to_token_stream().to_string();
                let shape = Shape::Field {
                    value: bytes(field.expr.span()),
                    name: name.clone(),
                    base: base.clone(),
                    is_short: field.colon_token.is_none(),
                };
                let what = format!("delete the field {name}");
                self.add(field.span(), shape, vec![(what, String::new())]);
            }
        }
        visit::visit_expr_struct(self, literal);
    }
}
